"""The search of the viewer: what it finds, that it ends in time, and that no statement of it reads the whole log."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from trinity.buffer import search
from trinity.buffer.records import Records
from trinity.buffer.store import ExperienceStore
from trinity.buffer.wanted import Wanted
from trinity.common.experience import EID, Experience
from trinity.utils.packages import postgresql_driver

READS_ALL = r"SCAN (experience|step_exp|experience_blob)\b|Seq Scan on (experience|step_exp|experience_blob)\b"
SORTS = r"TEMP B-TREE|Sort\b"
NUM_TASKS, RUNS = 20, ("a", "b")
LOOKED_UP = {
    "all": {},
    "run": {"run": "b"},
    "buffer": {"buffer": "exp"},
    "state": {"states": ("dropped",)},
    "task": {"task": "1/3"},
    "step": {"step": 1},
    "below": {"below": 5},
    "run and below": {"run": "a", "below": 5},
}
READ = {
    "reward": {"least_reward": 0.9},
    "reward and run": {"run": "b", "most_reward": 0.1},
    "text": {"text": "question 7"},
    "task and reward": {"task": "1/3", "most_reward": 0.5},
    "task and run": {"task": "1/3", "run": "a"},
    "task, state and text": {"task": "1/3", "states": ("trained",), "text": "question"},
    "text and state": {"text": "question", "states": ("trained",)},
    "reason": {"reason": "stale"},
    "reason and run": {"reason": "stale", "run": "a"},
    "reason and task": {"reason": "stale", "task": "1/10"},
    "reason and text": {"reason": "stale", "text": "question"},
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    """A log of two runs; of each the first half was trained in step 1, and one experience was dropped."""
    if request.param == "postgresql":
        from tests.postgresql import shared

        url = shared().database()
    else:
        url = f"sqlite:///{tmp_path_factory.mktemp('log')}/experience.db"
    with ExperienceStore(url) as store:
        for run in RUNS:
            rows = [
                Experience(
                    eid=EID(1, task),
                    tokens=[1, 2],
                    prompt_length=1,
                    logprobs=[-1.0],
                    reward=task / NUM_TASKS,
                    prompt_text=f"question {task} of {run}",
                    response_text="answer",
                )  # fmt: skip
                for task in range(NUM_TASKS)
            ]
            store.append("exp", rows, run=run, producer="explorer", explore_step=1)
            token = store.open_consumer("exp", "trainer", run=run, cut=0)
            uids = [one.eid.uid for one in store.claim(token, NUM_TASKS // 2 + 1)]
            store.drop(token, uids[-1:], "stale")
            store.commit_step(token, 1, uids[:-1])
    if request.param == "postgresql":
        engine = create_engine(url.replace("://", f"+{postgresql_driver(url)}://"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("ANALYZE"))
        engine.dispose()
    records = Records(url)
    yield records
    records.close()


@pytest.mark.parametrize("name", [*LOOKED_UP, *READ])
def test_a_search_finds_what_the_table_has_and_gives_it_part_by_part(log: Records, name: str) -> None:
    wanted: dict[str, Any] = (LOOKED_UP | READ)[name]
    expected = [row.id for row in log.page(Wanted(**wanted), number=0, size=1000)]
    assert expected and log.search(Wanted(**wanted)) == search.Found(expected)
    assert [row.id for row in log.of_ids(expected[:3])] == expected[:3]
    parts, below = list[int](), wanted.get("below")
    while True:
        found = log.search(Wanted(**wanted | {"below": below}), most=3)
        parts += found.ids
        if found.below is None:
            break
        assert len(found.ids) == 3
        below = found.below
    assert parts == expected


def test_a_search_whose_time_is_over_says_where_it_has_stopped(log: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    of_task = Wanted(task="1/3", most_reward=0.5)
    newest, older = log.search(of_task).ids
    with monkeypatch.context() as patch:
        patch.setattr(search, "_FIRST_BLOCK", 1)
        patch.setattr(search, "time", SimpleNamespace(monotonic=iter([0.0, 0.1, 9.0]).__next__))
        assert log.search(of_task, seconds=1.0) == search.Found([newest], newest), "and the older one is found next"
    assert log.search(replace(of_task, below=newest)).ids == [older]
    monkeypatch.setattr(search, "_FIRST_BLOCK", 8)
    times = iter([0.0, 0.1, *[9.0] * 9])
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert log.search(Wanted(text="question"), seconds=1.0) == search.Found(list(range(40, 32, -1)), 33)


@pytest.mark.parametrize("name", READ)
def test_a_search_without_time_looks_at_a_part_and_ends_when_it_is_continued(
    log: Records, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_FIRST_BLOCK", 3)
    wanted = Wanted(**READ[name])
    parts, below, calls = list[int](), wanted.below, 0
    while True:
        found = log.search(replace(wanted, below=below), seconds=0.0)
        parts += found.ids
        calls += 1
        if found.below is None:
            break
        assert below is None or found.below < below
        below = found.below
    assert parts == log.search(wanted, seconds=600.0).ids and calls <= 2 * NUM_TASKS // 3 + 1


def test_a_small_log_is_searched_whole_however_slow_the_machine_is(log: Records) -> None:
    for wanted in READ.values():
        assert log.search(Wanted(**wanted), seconds=0.0) == log.search(Wanted(**wanted), seconds=600.0)


def plans(records: Records, ask: Callable[[], Any]) -> list[tuple[str, str]]:
    """Return statements of a call, each with a line of its plan."""
    asked: list[tuple[str, Any]] = []

    def keep(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    event.listen(records._engine, "before_cursor_execute", keep)
    try:
        ask()
    finally:
        event.remove(records._engine, "before_cursor_execute", keep)
    is_sqlite = records._engine.dialect.name == "sqlite"
    lines = []
    with records._engine.connect() as connection:
        if not is_sqlite:
            # So short a table is read whole and sorted whatever there is; what counts is that an index would serve.
            for name in ("seqscan", "bitmapscan", "sort"):
                connection.exec_driver_sql(f"SET enable_{name} = off")
        for statement, parameters in asked:
            plan = connection.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' * is_sqlite}{statement}", parameters).all()
            lines += [(statement, str(row[-1])) for row in plan]
    return lines


def test_the_group_and_the_turns_of_an_experience_are_looked_up(log: Records) -> None:
    one = log.one(4)
    assert one is not None
    asked = (lambda: log.group(one, most=3), lambda: log.rollout(one, most=3), lambda: log.whole([one]))
    assert [[row.id for row in ask()] for ask in asked] == [[4]] * 3, "the other run has a task of this name, too"
    assert log.whole([one])[0].experience_bytes
    found = [each for ask in asked for each in plans(log, ask)]
    assert len(found) >= 5 and [(s, line) for s, line in found if re.search(f"{READS_ALL}|{SORTS}", line)] == []


@pytest.mark.parametrize("name", [*LOOKED_UP, *READ])
def test_no_statement_of_a_page_reads_the_whole_log(log: Records, name: str) -> None:
    wanted = Wanted(**(LOOKED_UP | READ)[name])
    found = plans(log, lambda: log.of_ids(log.search(wanted).ids[:5]))
    assert len(found) >= 2
    # The newest come from the end of the key; consumers are a handful.
    is_newest = r"(?s).*ORDER BY experience\.id DESC\s+LIMIT"
    assert [(s, line) for s, line in found if re.search(READS_ALL, line) and not re.match(is_newest, s)] == []
    sorts = [(s, line) for s, line in found if re.search(SORTS, line) and "LIMIT" in s]
    assert name == "step" or sorts == [], "the first ones come from an index in their order"


def test_a_log_of_an_older_program_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    with sqlite3.connect(file) as old:
        old.executescript((Path(__file__).parent / "store" / "version_0_1.sql").read_text())
        old.execute("ALTER TABLE experience ADD COLUMN is_first INTEGER NOT NULL DEFAULT 1")
        old.execute("UPDATE experience SET experience_bytes = NULL WHERE id = 2")
    old.close()
    before, records = file.read_bytes(), Records(str(file))
    assert records.search(Wanted(states=("ready",))).ids == [5, 4] and records.search(Wanted(step=1)).ids == [1]
    rows = records.after(Wanted(), 0, size=9)
    assert [(row.payload_bytes is None, row.blob is None) for row in rows] == [(id_ == 2,) * 2 for id_ in range(1, 6)]
    assert [row.to_experience().tokens.tolist() for row in rows[2:]] == [[1, task, 0, 7] for task in (2, 3, 4)]
    records.close()
    assert file.read_bytes() == before
