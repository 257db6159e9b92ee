"""Claims of a queue: the rows that a consumer may take now.

Rows are taken in the order of the log. States of a row:

    append          ---> READY, or DROPPED if the experience is too large
    READY           ---claim--------------------> CLAIMED
    CLAIMED         ---commit_step--------------> TRAINED
    CLAIMED         ---drop, unreadable payload-> DROPPED
    CLAIMED         ---lease expired------------> CLAIMED, by another consumer
    TRAINED         ---claim, replay only-------> CLAIMED (see `replay`)
    CLAIMED, or used after step `cut` ---open_consumer---> READY, or TRAINED by the steps until `cut`
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, or_, select, update
from sqlalchemy.engine import Row

from trinity.buffer.store.dialect import clock
from trinity.buffer.store.scope import CHUNK, Scope, among, chunks
from trinity.buffer.store.tables import BLOB, EXPERIENCE
from trinity.buffer.store.types import NO_TASK, ConsumerToken
from trinity.common.schema.sql_schema import CLAIMED, READY

Conditions = list[ColumnElement[bool]]


@dataclass(frozen=True)
class Limits:
    """How much a claim takes.

    Attributes:
        n: rows at most.
        at_least: nothing is claimed if fewer are there.
        max_version: leave rows of newer weights alone.
        whole_rollouts: the two numbers count rollouts, each with all of its rows.
    """

    n: int
    at_least: int = 0
    max_version: int | None = None
    whole_rollouts: bool = False


def claim(connection: Connection, token: ConsumerToken, limits: Limits, *, lease_s: float) -> list[Row[Any, Any, Any]]:
    """Claim the first claimable rows within `limits`.

    Return (id, uid, payload) of each.
    """
    columns = EXPERIENCE.c
    wanted = claimable(connection, Scope.of(token), consumer=token.consumer, max_version=limits.max_version)
    statement = with_payload().order_by(columns.id)
    if limits.whole_rollouts:
        found, last = _first_rollouts(connection, wanted, n=limits.n)
        rows = _locked(connection, statement.where(columns.id <= last), wanted)
    else:
        rows = _locked(connection, statement.limit(limits.n), wanted)[: limits.n]
        found = len(rows)
    if found < max(limits.at_least, 1):
        return []
    values = {"state": CLAIMED, "claimed_by": token.consumer, "lease_until": clock(connection) + lease_s}
    for part in chunks([row.id for row in rows]):
        connection.execute(update(EXPERIENCE).where(among(columns.id, part)).values(**values))
    return rows


def with_payload() -> Select[Any]:
    """Return the statement for (id, uid, payload) of all rows."""
    columns = EXPERIENCE.c
    both = EXPERIENCE.outerjoin(BLOB, BLOB.c.id == columns.id)
    return select(columns.id, columns.uid, BLOB.c.experience_bytes).select_from(both)


def num_claimable(connection: Connection, scope: Scope, *, n: int, consumer: str, max_version: int | None) -> int:
    """Return how many rollouts `consumer` could claim now, at most `n`."""
    wanted = claimable(connection, scope, consumer=consumer, max_version=max_version)
    return _first_rollouts(connection, wanted, n=n)[0]


def claimable(
    connection: Connection, scope: Scope, *, consumer: str, max_version: int | None = None
) -> tuple[Conditions, Conditions]:
    """Return the conditions of the rows that `consumer` could claim now.

    The first holds for ready rows, the second for rows of expired claims. Each is a search of `ix_experience_queue`.
    One condition for both would bypass the index and read the whole log.
    """
    columns = EXPERIENCE.c
    ready = [scope.where(EXPERIENCE), columns.state == READY]
    is_expired = (columns.lease_until < clock(connection), columns.claimed_by != consumer)
    expired = [scope.where(EXPERIENCE), columns.state == CLAIMED, *is_expired]
    if max_version is not None:
        is_known = or_(columns.model_version.is_(None), columns.model_version <= max_version)
        ready.append(is_known)
        expired.append(is_known)
    return ready, expired


def rollout_key(number: int, task: str, run: int) -> tuple[Any, Any]:
    """Return the key that the rows of a rollout share.

    A row that names no task is a rollout by itself.

    Args:
        number: the row's id.
        task: its `task_id`.
        run: its `run_id`.
    """
    return (number, None) if task == NO_TASK else (task, run)


def _locked(connection: Connection, statement: Any, wanted: Sequence[Conditions]) -> list[Row[Any, Any, Any]]:
    """Return the rows of either condition in the order of the log.

    The rows are locked where the database has row locks.
    """
    locking = statement.with_for_update(skip_locked=True, of=EXPERIENCE)
    rows = [row for conditions in wanted for row in connection.execute(locking.where(*conditions))]
    return sorted(rows, key=lambda row: int(row.id))


def _first_rollouts(connection: Connection, wanted: Sequence[Conditions], *, n: int) -> tuple[int, int]:
    """Return the number of first rollouts, at most `n`, and their last id.

    The rows of a rollout follow each other in the log: an explore step is appended sorted by id.
    """
    columns = EXPERIENCE.c
    statement = select(columns.id, columns.task_id, columns.run_id).order_by(columns.id)
    statement = statement.execution_options(yield_per=CHUNK)
    seen: set[tuple[Any, Any]] = set()
    last = 0
    with ExitStack() as stack:
        streams = [stack.enter_context(connection.execute(statement.where(*conditions))) for conditions in wanted]
        # Tuples are merged by their first item, the id, which no two rows share. There are no expired claims but in
        # need, and a value of a row by its name costs four times as much.
        for number, task, run in heapq.merge(*(map(tuple, stream) for stream in streams)):
            key = rollout_key(number, task, run)
            if key not in seen and len(seen) == n:
                break
            seen.add(key)
            last = number
    return len(seen), last
