"""What others wrote into a database: bytes that are no experiences, other tables, names made to be SQL."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import xxhash
from sqlalchemy import create_engine, inspect, select, text, update

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience
from trinity.buffer.export import export_experiences
from trinity.buffer.records import Records
from trinity.buffer.sql_tables import load_sql_table
from trinity.buffer.store import ExperienceStore
from trinity.buffer.store.tables import BLOB, EXPERIENCE
from trinity.buffer.wanted import Wanted
from trinity.common.errors import DataError, EnvironmentProblem, StoreError
from trinity.common.payload import MAX_EXPERIENCE_BYTES
from trinity.utils.packages import postgresql_driver

GOOD = experience(1, 0).serialize()
NAMES = ("'; DROP TABLE experience; --", '"experience"', "100%", "a_c", "a\\", "x;y", "' OR '1'='1", "é\u202e字", "%")
"""`_` and `%` are wildcards of LIKE, and `a_c` must not find `abc`."""


class Bomb:
    """Its pickle makes a folder when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def sealed(data: bytes) -> bytes:
    """Return a payload with the checksum that it should have."""
    return data[:-16] + xxhash.xxh3_128_digest(data[:-16])


def damaged(marker: Path) -> list[bytes]:
    """Return bytes that are no experience, each in its own way."""
    bomb = pickle.dumps(Bomb(marker))
    other = bytearray(GOOD)
    struct.pack_into("<H", other, 4, 7)
    flipped = bytearray(GOOD)
    flipped[40] ^= 1
    inner = GOOD[:18] + bomb[: len(GOOD) - 34].ljust(len(GOOD) - 34) + GOOD[-16:]
    torn, large = GOOD[:-3], GOOD + bytes(MAX_EXPERIENCE_BYTES)
    return [large, bomb, sealed(inner), sealed(bytes(other)), bytes(flipped), torn, b"", b"TREX"]


def test_bytes_of_others_are_set_aside_one_by_one_and_never_run(store_url: str, tmp_path: Path) -> None:
    """B112, X12: on SQLite and on PostgreSQL."""
    marker = tmp_path / "marker"
    bad = damaged(marker)
    with ExperienceStore(store_url, busy_timeout_s=20.0) as store:
        rows = [experience(1, task) for task in range(len(bad) + 2)]
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
        with store._database.write() as connection:
            for number, payload in enumerate(bad, start=1):
                row = select(EXPERIENCE.c.id).where(EXPERIENCE.c.uid == f"1/{number}/0/0/").scalar_subquery()
                connection.execute(update(BLOB).where(BLOB.c.id == row).values(experience_bytes=payload))
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        for _ in bad:
            with pytest.raises(DataError, match=r"E5101.*row \d+ \(1/\d/0/0/\).*it was set aside"):
                store.claim(token, len(rows))
        assert [each.eid.task for each in store.claim(token, len(rows))] == [0, len(bad) + 1]
        assert store.counts(BUFFER, RUN)["dropped"] == {"unreadable": len(bad)}
    records = Records(store_url)
    output = tmp_path / "out.jsonl"
    assert export_experiences(records, Wanted(), output, form="jsonl") == (len(rows), len(bad))
    records.close()
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["tokens"] is None for line in lines] == [False, *[True] * len(bad), False]
    assert not marker.exists()
    pickle.loads(bad[1])  # noqa: S301 - so that the test knows a bomb that works
    assert marker.is_dir()


def test_a_table_of_another_program_is_refused_and_left_alone(store_url: str) -> None:
    """B112: a database whose table `experience` is not ours."""
    driver = postgresql_driver(store_url)
    engine = create_engine(store_url.replace("postgresql:", f"postgresql+{driver}:"))
    with engine.begin() as connection:
        connection.execute(text("create table experience (id integer, experience_bytes text)"))
        connection.execute(text("insert into experience values (1, 'theirs')"))
    with pytest.raises(StoreError, match="a table `experience` that this program did not make"):
        ExperienceStore(store_url, busy_timeout_s=5.0).open()
    with pytest.raises(EnvironmentProblem, match="E3435"):
        Records(store_url).page(Wanted(), number=0, size=1)
    with pytest.raises(DataError, match="E4062"):
        load_sql_table(store_url, name=BUFFER, schema="experience")
    with engine.connect() as connection:
        assert connection.execute(text("select * from experience")).all() == [(1, "theirs")]
        assert inspect(connection).get_table_names() == ["experience"]
    engine.dispose()


def num_found(records: Records, wanted: Wanted) -> int:
    """Return how many experiences meet filters; all were looked at."""
    found = records.search(wanted, seconds=60.0)
    assert found.below is None
    return len(found.ids)


def test_names_and_filters_are_values_and_never_statements(store_url: str) -> None:
    """X19: of buffers, runs, stages, parts, tasks and tables, and what a reader searches for."""
    with ExperienceStore(store_url, busy_timeout_s=20.0) as store:
        for number, name in enumerate(NAMES, start=1):
            row = experience(number, 0)
            row.response_text = f"abc {name}"
            store.append(name, [row], run=name, producer=name, stage=name, explore_step=1)
            token = store.open_consumer(name, name, run=name, stage=name, cut=0)
            assert [each.eid.uid for each in store.claim(token, 9)] == [f"{number}/0/0/0/"]
            store.commit_step(token, 1, [f"{number}/0/0/0/"])
            assert store.counts(name, name, name)["trained"] == 1
    records = Records(store_url)
    for number, name in enumerate(NAMES, start=1):
        for wanted in (Wanted(buffer=name), Wanted(run=name), Wanted(run=name, step=1), Wanted(task=f"{number}/0")):
            assert num_found(records, wanted) == 1, wanted
        assert num_found(records, Wanted(text=name)) == sum(name in f"abc {other}" for other in NAMES)
        assert num_found(records, Wanted(task=name)) == num_found(records, Wanted(text=name, states=(name,))) == 0
        assert [row.buffer for row in records.of_step(name, 1, buffer=name)] == [name]
        assert load_sql_table(store_url, name=name, schema="experience").columns
        with pytest.raises(DataError, match="E4061"):
            load_sql_table(store_url, name=name, schema="task")
    assert num_found(records, Wanted(text="x" * 10_000)) == num_found(records, Wanted(task="x" * 10_000)) == 0
    for wanted in (Wanted(task="a\0b"), Wanted(text="a\0b")):
        try:
            assert num_found(records, wanted) == 0
        except EnvironmentProblem as error:  # PostgreSQL has no such text
            assert "NUL" in str(error) and store_url.startswith("postgresql")
    assert num_found(records, Wanted()) == len(NAMES)
    records.close()
