"""Search for experiences, the newest first, that ends in time.

Conditions that an index covers (run, buffer, state, task, training step) are looked up. For others (reward, text,
reason of a drop, or any condition in addition to a task) the log is read backwards, or only its rows of the task or its
dropped rows, until enough rows are found or the time is over; the result then says where the search stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, select
from sqlalchemy.orm import Session

from trinity.buffer.store.tables import ConsumerModel, StepExperienceModel
from trinity.buffer.wanted import Wanted
from trinity.common.schema.sql_schema import CLAIMED, DROPPED, READY, TRAINED, ExperienceModel

MOST = 2_000
SECONDS = 0.3
_FIRST_BLOCK = 256
_BLOCK_S = (0.02, 0.05)  # a shorter block is followed by one twice as long, a longer one by half of it
_LARGEST_BLOCK = 8_192  # of a part of the log that is read row by row
_SCOPE = ("run", "stage", "buffer")


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        ids: of experiences, the newest first.
        below: experiences with smaller ids were not looked at; None: all were.
    """

    ids: list[int]
    below: int | None = None


def search(session: Session, wanted: Wanted, *, most: int = MOST, seconds: float = SECONDS) -> Found:
    """Return the newest experiences that are wanted.

    Args:
        session: of the database.
        wanted: which ones.
        most: of them.
        seconds: time after which no further part of the log is read; one is always read, so that a search which is
            repeatedly continued at `below` reaches its end.
    """
    row = ExperienceModel
    newest = select(row.id).order_by(row.id.desc()).limit(most + 1)
    if wanted.step is not None:
        ids = [number for each in _of_step(session, wanted) for number in session.scalars(each.limit(most + 1))]
    elif wanted.task and wanted != Wanted(task=wanted.task, below=wanted.below):
        parts = [row.task_id == wanted.task]
        return _along(session, wanted, parts, most=most, deadline=time.monotonic() + seconds)
    elif wanted.reason:
        parts = list(_of_states(session, replace(wanted, states=(DROPPED,))))
        return _along(session, wanted, parts, most=most, deadline=time.monotonic() + seconds)
    elif wanted.is_loose:
        return _backwards(session, wanted, most=most, deadline=time.monotonic() + seconds)
    elif wanted.run or wanted.buffer or wanted.states:
        below = () if wanted.below is None else (row.id < wanted.below,)
        asked = (newest.where(each, *below) for each in _of_states(session, wanted))
        ids = [number for each in asked for number in session.scalars(each)]
    else:
        ids = list(session.scalars(newest.where(*wanted.conditions())))
    ids = sorted(set(ids), reverse=True)
    return Found(ids) if len(ids) <= most else Found(ids[:most], ids[most - 1])


def _backwards(session: Session, wanted: Wanted, *, most: int, deadline: float) -> Found:
    row, conditions = ExperienceModel, wanted.conditions(is_read=True)
    parts = list(_of_states(session, wanted)) if wanted.run or wanted.buffer or wanted.states else [and_(row.id > 0)]
    upper = max((session.scalar(select(func.max(row.id)).where(each)) or 0 for each in parts), default=0) + 1
    upper = upper if wanted.below is None else min(upper, wanted.below)
    size, ids = _FIRST_BLOCK, list[int]()
    while upper > 1:
        started, lower = time.monotonic(), max(upper - size, 1)
        block = select(row.id).where(row.id >= lower, row.id < upper, *conditions)
        ids += session.scalars(block.order_by(row.id.desc()))
        upper, ended = lower, time.monotonic()
        if len(ids) > most:
            return Found(ids[:most], ids[most - 1])
        if ended >= deadline and upper > 1:
            return Found(ids, upper)
        size = _next_size(size, ended - started)
    return Found(ids)


def _along(
    session: Session, wanted: Wanted, parts: Sequence[ColumnElement[bool]], *, most: int, deadline: float
) -> Found:
    """Return the rows of ranges of an index that meet all conditions.

    The ranges are read in blocks, the newest rows first, so that a block takes little time however many rows there are.
    """
    row, rest = ExperienceModel, replace(wanted, task="", below=None).conditions(is_read=True)
    asked = select(row.id, and_(*rest)).order_by(row.id.desc())

    def newest(below: int | None, size: int) -> list[tuple[int, bool]]:
        older = () if below is None else (row.id < below,)
        blocks = (session.execute(asked.where(part, *older).limit(size)) for part in parts)
        found = [(number, bool(is_wanted)) for block in blocks for number, is_wanted in block]
        return sorted(found, reverse=True)[:size] if len(parts) > 1 else found

    upper = wanted.below or next((number for number, _ in newest(None, 1)), 0) + 1
    size, ids = _FIRST_BLOCK, list[int]()
    while True:
        started = time.monotonic()
        block = newest(upper, size)
        ids += [number for number, is_wanted in block if is_wanted]
        if len(ids) > most:
            return Found(ids[:most], ids[most - 1])
        if len(block) < size:
            return Found(ids)
        upper, ended = block[-1][0], time.monotonic()
        if ended >= deadline:
            return Found(ids, upper)
        size = min(_next_size(size, ended - started), _LARGEST_BLOCK)


def _next_size(size: int, spent: float) -> int:
    """Return the next block's size; the last one took `spent` seconds."""
    return size * 2 if spent < _BLOCK_S[0] else max(size // 2, 1) if spent > _BLOCK_S[1] else size


def scopes(session: Session) -> Iterator[tuple[str, str, str]]:
    """Yield run, stage and buffer of all experiences.

    Each takes a few searches of an index.
    """
    for run in _values(session, ExperienceModel.run):
        for stage in _values(session, ExperienceModel.stage, ExperienceModel.run == run):
            own = (ExperienceModel.run == run, ExperienceModel.stage == stage)
            for buffer in _values(session, ExperienceModel.buffer, *own):
                yield run, stage, buffer


def _values(session: Session, column: Any, *where: ColumnElement[bool]) -> Iterator[str]:
    """Yield the distinct values of a column, each found by an index search.

    A query for all values at once would make the database read all rows.
    """
    asked = select(func.min(column)).where(*where)
    value = session.scalar(asked)
    while value is not None:
        yield value
        value = session.scalar(asked.where(column > value))


def _of_states(session: Session, wanted: Wanted) -> Iterator[ColumnElement[bool]]:
    """Yield conditions that each select a range of `ix_experience_queue`.

    In such a range the ids ascend.
    """
    row = ExperienceModel
    for run, stage, buffer in scopes(session):
        if (wanted.run or run) != run or (wanted.buffer or buffer) != buffer:
            continue
        for state in wanted.states or (READY, CLAIMED, TRAINED, DROPPED):
            yield and_(row.run == run, row.stage == stage, row.buffer == buffer, row.state == state)


def _of_step(session: Session, wanted: Wanted) -> Iterator[Select[Any]]:
    """Yield a statement for what each consumer used in a training step."""
    row, used, names = ExperienceModel, StepExperienceModel, (*_SCOPE, "consumer")
    same = [getattr(used, name) == getattr(row, name) for name in (*_SCOPE, "uid")]
    rest = wanted.conditions(with_step=False)
    for consumer in session.execute(select(*(getattr(ConsumerModel, name) for name in names))):
        own = [getattr(used, name) == value for name, value in zip(names, consumer, strict=True)]
        asked = select(row.id).join(used, and_(*same)).where(*own, used.step == wanted.step, *rest)
        yield asked.order_by(row.id.desc())
