"""What the viewer's pages cost on a long log: the first page, and pages of every filter."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from scale_rows import BATCH, database, fill
from sqlalchemy import create_engine, text

from trinity.buffer.records import Records
from trinity.buffer.wanted import Wanted
from trinity.manager.viewer.page import PAGE_SIZE
from trinity.manager.viewer.sections import GROUP_SIZE, TURNS
from trinity.manager.viewer.shown import overview

RUNS = ("runs/first", "runs/second")
TEXT_BYTES = 1000
DROPPED_EVERY, REASONS = 100, 100
DROP = (
    f"UPDATE experience SET state = 'dropped', drop_reason = 'reason ' || (id / {DROPPED_EVERY} % {REASONS}) "
    f"WHERE id % {DROPPED_EVERY} = 0"
)
Row = dict[str, Any]


def filters(draw: random.Random, *, steps: int) -> Iterator[tuple[str, Wanted]]:
    """Yield a filter of each kind, with a value of its own."""
    step, run = draw.randint(1, steps), draw.choice(RUNS)
    least = draw.randint(0, 90) / 100
    yield "run", Wanted(run=run)
    yield "state", Wanted(states=("trained",))
    yield "state that no row has", Wanted(states=("claimed",))
    yield "task", Wanted(task=f"{step}/{draw.randrange(BATCH)}")
    yield "training step", Wanted(run=run, step=step)
    yield "reward", Wanted(least_reward=least, most_reward=least + 0.1)
    yield "reward and run", Wanted(run=run, least_reward=least)
    yield "reward that no row has", Wanted(least_reward=2.0)
    yield "text of many rows", Wanted(text="prompt")
    yield "text of one row", Wanted(text=f" {draw.randrange(steps * BATCH)} of")
    yield "reason that no row has", Wanted(reason="stale")
    yield "reason of some rows", Wanted(reason=f"reason {draw.randrange(REASONS)}")
    yield "below an id", Wanted(below=draw.randint(1, steps * BATCH))


def pages(folder: Path, *, rows: int, repeats: int, url: str | None = None) -> list[Row]:
    """Return the milliseconds of the first page, with the opening of the database, and of a page of each filter.

    Args:
        folder: on the disk that is measured.
        rows: of the log, half of them of either run, with texts of `TEXT_BYTES`.
        repeats: of each filter.
        url: of a PostgreSQL server, with a user that may create databases; None: SQLite.
    """
    with database(folder, url, name=f"trinity_pages_{rows}") as place:
        for run in RUNS:
            scope = {"run": run, "stage": "", "buffer": "exp"}
            steps = fill(place, rows=rows // len(RUNS), place=scope, text_bytes=TEXT_BYTES)
        drop_some(place)
        found = [_timed("first page", lambda: _first(place), repeats=repeats)]
        records, draw = Records(place), random.Random(1)
        asked: dict[str, list[Wanted]] = {}
        for _ in range(repeats):
            for name, wanted in filters(draw, steps=steps):
                asked.setdefault(name, []).append(wanted)
        for name, each in asked.items():
            left = iter(each)
            found.append(_timed(name, lambda left=left: _page(records, next(left)), repeats=repeats))
        opened = iter([draw.randint(1, steps * BATCH * len(RUNS)) for _ in range(repeats)])
        found.append(_timed("an experience with its group", lambda: _opened(records, next(opened)), repeats=repeats))
        records.close()
    return found


def drop_some(place: str) -> None:
    """Drop every hundredth row, for one of a hundred reasons."""
    engine = create_engine(place)
    with engine.begin() as connection:
        connection.execute(text(DROP))
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()


def _first(place: str) -> int:
    records = Records(place)
    number = _page(records, Wanted())
    records.close()
    return number


def _page(records: Records, wanted: Wanted) -> int:
    """Do what the viewer does for a page; return how many experiences were found."""
    found = records.search(wanted)
    overview(records.of_ids(found.ids[:PAGE_SIZE]))
    return len(found.ids)


def _opened(records: Records, number: int) -> int:
    """Do what the viewer does for an experience, its trajectory and its group; return how many the group has."""
    row = records.one(number)
    if row is None:
        raise RuntimeError(f"there is no experience {number}")
    records.rollout(row, most=TURNS)
    group = records.group(row, most=GROUP_SIZE)
    records.whole(group)
    return len(group)


def _timed(name: str, call: Callable[[], int], *, repeats: int) -> Row:
    times, numbers = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        numbers.append(call())
        times.append((time.perf_counter() - started) * 1e3)
    ordered = sorted(times)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return {"page": name, "found": int(median(numbers)), "first_ms": times[0], "ms": median(times), "p95_ms": p95}


def table(found: list[Row]) -> list[str]:
    """Return the figures as lines of Markdown."""
    lines = ["| page | found | the first time, ms | median ms | p95 ms |", "|---|---|---|---|---|"]
    for row in found:
        times = " | ".join(f"{row[name]:.0f}" for name in ("first_ms", "ms", "p95_ms"))
        lines.append(f"| {row['page']} | {row['found']:,} | {times} |")
    return lines
