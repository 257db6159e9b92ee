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
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, or_, select, update
from sqlalchemy.engine import Row

from trinity.buffer.store.dialect import clock, has_row_locks
from trinity.buffer.store.scope import CHUNK, Scope, of_ids
from trinity.buffer.store.tables import BLOB, EXPERIENCE
from trinity.buffer.store.types import NO_TASK, ConsumerToken
from trinity.common.errors import StoreError
from trinity.common.schema.sql_schema import CLAIMED, READY

Conditions = list[ColumnElement[bool]]


@dataclass(frozen=True)
class Limits:
    """How much a claim takes.

    Attributes:
        n: rows at most.
        at_least: nothing is claimed if fewer are there.
        max_version: rows sampled by newer weights are not claimed.
        whole_rollouts: `n` and `at_least` count rollouts, each of which is claimed with all of its rows.
    """

    n: int
    at_least: int = 0
    max_version: int | None = None
    whole_rollouts: bool = False


def claim(connection: Connection, token: ConsumerToken, limits: Limits, *, lease_s: float) -> list[int]:
    """Claim the first claimable rows within `limits`; return their ids."""
    columns = EXPERIENCE.c
    wanted = claimable(connection, Scope.of(token), consumer=token.consumer, max_version=limits.max_version)
    statement = select(columns.id).order_by(columns.id)
    if limits.whole_rollouts:
        rollouts = _first_rollouts(connection, wanted, n=limits.n)
        if rollouts and has_row_locks(connection):
            last = max(numbers[-1] for numbers in rollouts)
            mine = set(_locked(connection, statement.where(columns.id <= last), wanted))
            # A row that another connection has locked would be left behind by the others of its rollout.
            rollouts = [numbers for numbers in rollouts if mine.issuperset(numbers)]
        found, ids = len(rollouts), sorted(itertools.chain.from_iterable(rollouts))
    else:
        ids = _locked(connection, statement.limit(limits.n), wanted)[: limits.n]
        found = len(ids)
    if found < max(limits.at_least, 1):
        return []
    take(connection, token, ids, lease_s=lease_s)
    return ids


def take(connection: Connection, token: ConsumerToken, ids: Sequence[int], *, lease_s: float) -> None:
    """Mark rows as claimed by the consumer of `token`."""
    values = {"state": CLAIMED, "claimed_by": token.consumer, "lease_until": clock(connection) + lease_s}
    for rows in of_ids(EXPERIENCE.c.id, ids):
        connection.execute(update(EXPERIENCE).where(rows).values(**values))


def held_by(token: ConsumerToken) -> ColumnElement[bool]:
    """Return the condition that a row is claimed by the consumer of `token`."""
    return and_(EXPERIENCE.c.state == CLAIMED, EXPERIENCE.c.claimed_by == token.consumer)


def with_payloads(connection: Connection, token: ConsumerToken, ids: Sequence[int]) -> list[Row[Any, Any, Any]]:
    """Return (id, uid, payload) of claimed rows, in the order of `ids`.

    Raises:
        StoreError: the consumer does not hold all of them any more (E5204).
    """
    columns = EXPERIENCE.c
    both = EXPERIENCE.outerjoin(BLOB, BLOB.c.id == columns.id)
    statement = select(columns.id, columns.uid, BLOB.c.experience_bytes).select_from(both).where(held_by(token))
    found = {row[0]: row for rows in of_ids(columns.id, ids) for row in connection.execute(statement.where(rows))}
    if len(found) < len(ids):
        raise lost_claims(token, "read", number=len(ids), lost=len(ids) - len(found))
    return [found[number] for number in ids]


def lost_claims(token: ConsumerToken, what: str, *, number: int, lost: int) -> StoreError:
    """Return the error that `lost` of `number` rows are not held any more."""
    return StoreError(
        f"cannot {what} {number} experiences: {lost} of them are not claimed by {token.consumer!r} (their lease ended "
        "and another consumer took them, or they were already used)",
        code="E5204",
    )


def num_claimable(connection: Connection, scope: Scope, *, n: int, consumer: str, max_version: int | None) -> int:
    """Return how many rollouts `consumer` could claim now, at most `n`."""
    wanted = claimable(connection, scope, consumer=consumer, max_version=max_version)
    return len(_first_rollouts(connection, wanted, n=n))


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


def _locked(connection: Connection, statement: Any, wanted: Sequence[Conditions]) -> list[int]:
    """Return the ids of the rows of either condition in the order of the log.

    The rows are locked where the database has row locks.
    """
    locking = statement.with_for_update(skip_locked=True, of=EXPERIENCE)
    return sorted(number for conditions in wanted for number in connection.scalars(locking.where(*conditions)))


def _first_rollouts(connection: Connection, wanted: Sequence[Conditions], *, n: int) -> list[list[int]]:
    """Return the row ids of each of the first rollouts, at most `n`.

    The rows of a rollout follow each other in the log: an explore step is appended sorted by id.
    """
    columns = EXPERIENCE.c
    statement = select(columns.id, columns.task_id, columns.run_id).order_by(columns.id)
    statement = statement.execution_options(yield_per=CHUNK)
    found: dict[tuple[Any, Any], list[int]] = {}
    with ExitStack() as stack:
        streams = [stack.enter_context(connection.execute(statement.where(*conditions))) for conditions in wanted]
        # Tuples are merged by their first item, the id, which no two rows share. Rows are unpacked as tuples, since
        # access by name takes four times as long, and fetched many at once, since one by one takes twice as long.
        rows = (itertools.chain.from_iterable(stream.partitions()) for stream in streams)
        for number, task, run in heapq.merge(*(map(tuple, each) for each in rows)):
            key = rollout_key(number, task, run)
            if key not in found and len(found) == n:
                break
            found.setdefault(key, []).append(number)
    return list(found.values())
