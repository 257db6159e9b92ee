"""Statements of the log.

Each function runs inside a transaction that the store has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, case, delete, func, insert, select, union, update

from trinity.buffer.store import claims, fates
from trinity.buffer.store.dialect import clock, insert_rows, new_ids
from trinity.buffer.store.fates import Owner
from trinity.buffer.store.pruning import PRUNED
from trinity.buffer.store.scope import Scope, among, chunks
from trinity.buffer.store.tables import (
    ABSENT,
    BLOB,
    CONSUMER,
    EXPERIENCE,
    FATE,
    NO_ROOM,
    PRODUCER,
    SNAPSHOT,
    STEP_EXP,
    TRAIN_STEP,
    read_wait,
)
from trinity.buffer.store.types import BufferCounts, ConsumerToken
from trinity.common.errors import StoreError
from trinity.common.schema.sql_schema import CLAIMED, DROPPED, READY, TRAINED


@dataclass(frozen=True)
class Producers:
    """State of the producers of a scope.

    Attributes:
        known: producers ever opened.
        open: producers not finished.
        waiting: open producers that append nothing before the next model version. One that has died is among them
            unless all have: then it is waited for.
        unscheduled: open producers that append at any time, such as a service.
    """

    known: int
    open: int
    waiting: int
    unscheduled: int = 0

    @property
    def is_closed(self) -> bool:
        """All producers are finished."""
        return self.known > 0 and self.open == 0

    @property
    def is_idle(self) -> bool:
        """Nothing will be appended before the next model version."""
        return self.known > 0 and self.open == self.waiting


def known_uids(connection: Connection, scope: Scope, *, uids: Sequence[str]) -> set[str]:
    """Return those of `uids` that the log has."""
    known: set[str] = set()
    for part in chunks(uids):
        statement = select(EXPERIENCE.c.uid).where(scope.where(EXPERIENCE), among(EXPERIENCE.c.uid, part))
        known.update(connection.scalars(statement))
    return known


def add_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows of `experience_values` to the log.

    Their payloads go into a table of their own.
    """
    if not rows:
        return
    given = [
        {**row, "id": number} for row, number in zip(rows, new_ids(connection, EXPERIENCE, len(rows)), strict=True)
    ]
    blobs = [{"id": row["id"], "experience_bytes": row.pop("experience_bytes")} for row in given]
    insert_rows(connection, EXPERIENCE, given)
    insert_rows(connection, BLOB, [blob for blob in blobs if blob["experience_bytes"] is not None])


def upsert_producer(connection: Connection, scope: Scope, *, producer: str, values: dict[str, Any]) -> None:
    """Set columns of a producer, making it if it is new."""
    key = and_(scope.where(PRODUCER), PRODUCER.c.producer == producer)
    if not connection.execute(update(PRODUCER).where(key).values(**values)).rowcount:
        start = {"is_open": 1, "finished_step": 0, **values}
        connection.execute(insert(PRODUCER).values(**scope.values, producer=producer, **start))


def finished_step(connection: Connection, scope: Scope, *, producer: str) -> int:
    """Return a producer's last complete explore step in the log, else 0."""
    key = and_(scope.where(PRODUCER), PRODUCER.c.producer == producer)
    return connection.scalar(select(PRODUCER.c.finished_step).where(key)) or 0


def keep_snapshot(connection: Connection, scope: Scope, *, producer: str, text: str | None, num_added: int = 0) -> None:
    """Replace a producer's snapshot, and count its appended rollouts.

    The snapshot stays as it is if `text` is None.
    """
    key = and_(scope.where(SNAPSHOT), SNAPSHOT.c.producer == producer)
    values: dict[str, Any] = {"num_rollouts": SNAPSHOT.c.num_rollouts + num_added}
    if text is not None:
        values["state"] = text
    if not connection.execute(update(SNAPSHOT).where(key).values(**values)).rowcount:
        first = {"state": text, "num_rollouts": num_added}
        connection.execute(insert(SNAPSHOT).values(**scope.values, producer=producer, **first))


def producers(
    connection: Connection, scope: Scope, *, trained_version: int | None, capacity: int | None = None
) -> Producers:
    """Return the producers' state as seen by a trainer.

    `trained_version` is the newest version that the trainer has published. A producer that waits for room in a buffer
    of `capacity` experiences does not count as waiting once there is room: it will append soon.
    """
    rows = connection.execute(select(PRODUCER.c.is_open, PRODUCER.c.wait_version).where(scope.where(PRODUCER))).all()
    waits = [read_wait(row.wait_version) for row in rows if row.is_open]
    if any(wait == NO_ROOM for wait, _ in waits) and capacity is not None and num_waiting(connection, scope) < capacity:
        waits = [(None if wait == NO_ROOM else wait, is_scheduled) for wait, is_scheduled in waits]
    present = [each for each in waits if each[0] != ABSENT]
    waiting = len(waits) - len(present) if present else 0
    if trained_version is not None:
        waiting += sum(1 for wait, _ in present if wait is not None and wait > trained_version)
    unscheduled = sum(1 for _, is_scheduled in present if not is_scheduled)
    return Producers(known=len(rows), open=len(waits), waiting=waiting, unscheduled=unscheduled)


def open_consumer(connection: Connection, scope: Scope, *, consumer: str, cut: int) -> int:
    """Fence older tokens and return the new epoch.

    Rows that the consumer claimed, or used after step `cut`, become ready again.

    Raises:
        StoreError: a payload that must be trained again was pruned (E5205).
    """
    key = and_(scope.where(CONSUMER), CONSUMER.c.consumer == consumer)
    epoch = (connection.scalar(select(CONSUMER.c.epoch).where(key)) or 0) + 1
    now = clock(connection)
    if not connection.execute(update(CONSUMER).where(key).values(epoch=epoch, opened_at=now)).rowcount:
        connection.execute(
            insert(CONSUMER).values(**scope.values, consumer=consumer, epoch=epoch, opened_at=now),
        )
    columns = EXPERIENCE.c
    mine = and_(scope.where(EXPERIENCE), columns.claimed_by == consumer)
    # One search of an index each: a condition for all of them at once would read the whole log.
    later = (columns.trained_step > cut, columns.retired_step > cut)
    lost = union(*(select(columns.id).where(mine, each, columns.payload_bytes.is_(None)) for each in later))
    pruned = connection.scalar(select(func.count()).select_from(lost.subquery()))
    if pruned:
        raise StoreError(
            f"cannot go back to training step {cut}: the payloads of {pruned} experiences of later steps were pruned; "
            "resume from a newer checkpoint or start a new run",
            code="E5205",
        )
    for table in (TRAIN_STEP, STEP_EXP):
        connection.execute(delete(table).where(scope.where(table), table.c.consumer == consumer, table.c.step > cut))
    fates.take_back(connection, scope, consumer=consumer, cut=cut)
    for each in (columns.state == CLAIMED, *later):
        connection.execute(update(EXPERIENCE).where(mine, each).values(**unclaimed(scope, consumer=consumer)))
    return epoch


def unclaimed(scope: Scope, *, consumer: str) -> dict[str, Any]:
    """Return the values of a row without its claim.

    The row is ready, or trained by the steps that used it.
    """
    uses = [scope.where(STEP_EXP), STEP_EXP.c.consumer == consumer, STEP_EXP.c.uid == EXPERIENCE.c.uid]
    number = select(func.count(STEP_EXP.c.uid)).where(*uses).correlate(EXPERIENCE).scalar_subquery()
    # `+ 0`: for the plain column, databases search backwards through all steps for one that names the row.
    last = select(func.max(STEP_EXP.c.step + 0)).where(*uses).correlate(EXPERIENCE).scalar_subquery()
    return {
        "state": case((number > 0, TRAINED), else_=READY),
        "claimed_by": case((number > 0, consumer), else_=None),
        "lease_until": None,
        "trained_step": last,
        "retired_step": None,
        "drop_reason": None,
        "consumed": case((number > 0, 1), else_=0),
        "use_count": number,
    }


def take_back(connection: Connection, scope: Scope, *, producer: str, after: int) -> int:
    """Remove a producer's explore steps after `after`.

    Return the number of rows. None are removed if a consumer has taken one of them.
    """
    columns = EXPERIENCE.c
    later = and_(scope.where(EXPERIENCE), columns.producer == producer, columns.explore_step > after)
    taken = select(func.count()).where(later, columns.claimed_by.is_not(None))
    if finished_step(connection, scope, producer=producer) <= after or connection.scalar(taken):
        return 0
    waiting = select(func.count()).where(later, columns.state == READY, columns.is_first == 1)
    pruned = select(func.count()).where(later, columns.drop_reason == PRUNED, columns.is_first == 1)
    gone = {fates.filtered(PRUNED): -(connection.scalar(pruned) or 0)}
    keep_snapshot(connection, scope, producer=producer, text=None, num_added=-(connection.scalar(waiting) or 0))
    connection.execute(delete(BLOB).where(BLOB.c.id.in_(select(columns.id).where(later))))
    number: int = connection.execute(delete(EXPERIENCE).where(later)).rowcount
    connection.execute(delete(FATE).where(Owner.producer(producer).where(scope), FATE.c.step > after))
    upsert_producer(connection, scope, producer=producer, values={"finished_step": after})
    if any(gone.values()):
        fates.add(connection, scope, fates.STORE, step=0, counts=gone)
    return number


def verify_token(connection: Connection, token: ConsumerToken) -> None:
    """Verify that no newer token of the consumer exists.

    Raises:
        StoreError: the token is fenced (E5203).
    """
    key = and_(Scope.of(token).where(CONSUMER), CONSUMER.c.consumer == token.consumer)
    epoch = connection.scalar(select(CONSUMER.c.epoch).where(key))
    if epoch != token.epoch:
        raise StoreError(
            f"consumer {token.consumer!r} of buffer {token.buffer!r} (epoch {token.epoch}) was replaced by a newer "
            f"process (epoch {epoch}); this process must end without saving",
            code="E5203",
        )


def end_claims(
    connection: Connection, token: ConsumerToken, *, uids: Sequence[str], values: dict[str, Any], what: str
) -> None:
    """Give the claimed rows of `uids` new values.

    Raises:
        StoreError: a row is not claimed by this consumer (E5204).
    """
    changed = 0
    for part in chunks(uids):
        statement = update(EXPERIENCE).where(
            Scope.of(token).where(EXPERIENCE), among(EXPERIENCE.c.uid, part), claims.held_by(token)
        )
        changed += connection.execute(statement.values(**values)).rowcount
    if changed != len(uids):
        raise claims.lost_claims(token, what, number=len(uids), lost=len(uids) - changed)


def last_step(connection: Connection, token: ConsumerToken) -> int:
    """Return the last committed training step of the consumer, 0 without any."""
    where = and_(Scope.of(token).where(TRAIN_STEP), TRAIN_STEP.c.consumer == token.consumer)
    return connection.scalar(select(func.max(TRAIN_STEP.c.step)).where(where)) or 0


def step_uids(connection: Connection, token: ConsumerToken, *, step: int) -> list[str] | None:
    """Return the ids that a committed step used, in order.

    Return None if the step is not committed.
    """
    scope = Scope.of(token)
    is_step = [scope.where(TRAIN_STEP), TRAIN_STEP.c.consumer == token.consumer, TRAIN_STEP.c.step == step]
    if not connection.scalar(select(func.count()).select_from(TRAIN_STEP).where(*is_step)):
        return None
    where = and_(scope.where(STEP_EXP), STEP_EXP.c.consumer == token.consumer, STEP_EXP.c.step == step)
    return list(connection.scalars(select(STEP_EXP.c.uid).where(where).order_by(STEP_EXP.c.pos)))


def commit_step(connection: Connection, token: ConsumerToken, *, step: int, uids: Sequence[str]) -> None:
    """Write the ledger row of a step and set its rows trained.

    Raises:
        StoreError: a row is not claimed (E5204), or the step was committed with other rows (E5207).
    """
    committed = step_uids(connection, token, step=step)
    if committed is not None:
        if committed == list(uids):
            return
        raise StoreError(f"training step {step} was already committed with other experiences", code="E5207")
    values = {"state": TRAINED, "consumed": 1, "trained_step": step, "lease_until": None}
    used = {**values, "use_count": EXPERIENCE.c.use_count + 1}
    end_claims(connection, token, uids=uids, values=used, what=f"commit training step {step} with")
    tags = {**Scope.of(token).values, "consumer": token.consumer, "step": step}
    now = clock(connection)
    connection.execute(
        insert(TRAIN_STEP).values(**tags, epoch=token.epoch, num_experiences=len(uids), committed_at=now)
    )
    insert_rows(connection, STEP_EXP, [{**tags, "pos": pos, "uid": uid} for pos, uid in enumerate(uids)])
    scope = Scope.of(token)
    new = fates.num_newly_trained(connection, scope, consumer=token.consumer, step=step)
    fates.add(connection, scope, Owner.consumer(token.consumer), step=step, counts={fates.ENDED_TRAINED: new})


def num_waiting(connection: Connection, scope: Scope) -> int:
    """Return how many rows are neither trained nor dropped.

    These rows count towards the capacity of a queue.
    """
    columns = EXPERIENCE.c
    waiting = and_(columns.state.in_((READY, CLAIMED)), columns.use_count == 0)
    return connection.scalar(select(func.count()).where(scope.where(EXPERIENCE), waiting)) or 0


def counts(connection: Connection, scope: Scope) -> BufferCounts:
    """Return the number of rows of the scope by state."""
    columns = EXPERIENCE.c
    statement = select(columns.state, columns.drop_reason, func.count()).where(scope.where(EXPERIENCE))
    result = BufferCounts(ready=0, claimed=0, trained=0, dropped={})
    for state, reason, number in connection.execute(statement.group_by(columns.state, columns.drop_reason)):
        if state == DROPPED:
            result["dropped"][reason or ""] = number
        elif state == READY:
            result["ready"] += number
        elif state == CLAIMED:
            result["claimed"] += number
        else:
            result["trained"] += number
    return result
