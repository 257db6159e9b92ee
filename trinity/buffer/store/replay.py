"""Replay: trained rows are claimed again, best priority first.

When the buffer is full, the rollouts of lowest priority leave it. States of a rollout:

    new (READY) ---claim---> CLAIMED ---commit_step---> TRAINED, held
        |                       ^                         |     |
        | beyond the            +---claim after           |     | spent, or beyond
        | capacity                  `cooldown_s`----------+     | the capacity
        v                                                       v
    DROPPED (evicted)                                   TRAINED, retired

A claimed rollout that was trained before and is then dropped is retired too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, select, update

from trinity.buffer.priority import PriorityFunction, ReplayItem
from trinity.buffer.store import claims, fates, ledger
from trinity.buffer.store.claims import Limits
from trinity.buffer.store.dialect import clock
from trinity.buffer.store.fates import Owner
from trinity.buffer.store.scope import CHUNK, Scope, among, chunks, of_ids
from trinity.buffer.store.tables import EXPERIENCE, TRAIN_STEP
from trinity.buffer.store.types import ConsumerToken
from trinity.common.schema.sql_schema import CLAIMED, DROPPED, TRAINED

EVICTED = "evicted"


@dataclass(frozen=True)
class Replay:
    """How trained rollouts are used again.

    Attributes:
        priority: order of rollouts, and which are used again.
        cooldown_s: pause between two uses of a rollout in seconds.
        capacity: experiences that may be used, at most; beyond it the lowest priorities leave the buffer.
        is_patient: claim only when the producers wait for weights or are finished, so that what is there follows
            from the schedule and not from timing; unless a producer follows no schedule.
        is_bounded: the trainer stops by itself: rollouts are used again when the producers are finished and no
            new ones are left.
    """

    priority: PriorityFunction
    cooldown_s: float
    capacity: int
    is_patient: bool = False
    is_bounded: bool = False


@dataclass
class BufferedRollout:
    """The rows of a rollout that the buffer holds.

    Attributes:
        ids: of its rows, ascending.
        item: what the priority function sees.
        is_claimable: it may be trained now: it is new, or has cooled down.
        priority: higher is claimed first.
        stays: it may be used now or later.
    """

    ids: list[int]
    item: ReplayItem
    is_claimable: bool
    priority: float = 0.0
    stays: bool = True

    @property
    def is_new(self) -> bool:
        """It was never trained."""
        return self.item.use_count == 0


@dataclass(frozen=True)
class Held:
    """The rollouts of the buffer in the order of their use.

    Attributes:
        kept: within the capacity, best first.
        evicted: beyond it.
        spent: used as often as the priority function lets them.
    """

    kept: list[BufferedRollout] = field(default_factory=list)
    evicted: list[BufferedRollout] = field(default_factory=list)
    spent: list[BufferedRollout] = field(default_factory=list)

    @property
    def claimable(self) -> list[BufferedRollout]:
        """What may be trained now, best first."""
        return [rollout for rollout in self.kept if rollout.is_claimable]


def held(
    connection: Connection, scope: Scope, *, consumer: str, replay: Replay, max_version: int | None = None
) -> Held:
    """Return what the buffer holds for `consumer`, by priority.

    Of two rollouts with equal priority the older comes first.

    Rollouts of weights newer than `max_version` are not counted.
    """
    last_cool = _last_cool(connection, scope, consumer=consumer, replay=replay)
    columns = EXPERIENCE.c
    statement = select(
        columns.id, columns.task_id, columns.run_id, columns.model_version, columns.use_count
    ).add_columns(columns.reward, columns.trained_step, columns.state)
    new = claims.claimable(connection, scope, consumer=consumer)
    rows = [
        tuple(row)  # access by name takes four times as long, and there are a thousand rows
        for conditions in (*new, _used(scope, consumer=consumer))
        for row in connection.execute(statement.where(*conditions, columns.payload_bytes.is_not(None)))
    ]
    rollouts: dict[tuple[Any, Any], BufferedRollout] = {}
    for number, task, run, version, use_count, reward, trained_step, state in sorted(rows):
        if max_version is not None and version is not None and version > max_version:
            continue  # of a run that was rewound: until its version is published again, it takes no room
        key = claims.rollout_key(number, task, run)
        if key in rollouts:
            rollouts[key].ids.append(number)
            continue
        item = ReplayItem(task, run, version or 0, use_count, reward)
        rollouts[key] = BufferedRollout([number], item, is_claimable=state != TRAINED or trained_step <= last_cool)
    return ranked(rollouts.values(), replay)


def most_claimable(connection: Connection, token: ConsumerToken, limits: Limits, *, replay: Replay) -> int:
    """Return an upper bound of the number of claimable rollouts.

    These are rollouts that are new or have cooled down, counted up to `limits.n`. A waiting reader polls this, because
    ranking the whole buffer costs more.
    """
    scope, n, consumer = Scope.of(token), limits.n, token.consumer
    new = claims.num_claimable(connection, scope, n=n, consumer=consumer, max_version=limits.max_version)
    columns, seen = EXPERIENCE.c, set[tuple[Any, Any]]()
    last_cool = _last_cool(connection, scope, consumer=consumer, replay=replay)
    cooled = (*_used(scope, consumer=consumer), columns.trained_step <= last_cool)
    statement = select(columns.id, columns.task_id, columns.run_id).where(*cooled)
    with connection.execute(statement.execution_options(yield_per=CHUNK)) as rows:
        for row in rows:
            if new + len(seen) >= n:
                break
            seen.add(claims.rollout_key(*row))
    return new + len(seen)


def _used(scope: Scope, *, consumer: str) -> list[ColumnElement[bool]]:
    """Return the conditions of the rows that were trained and are held.

    They are a search of `ix_experience_held`.
    """
    columns = EXPERIENCE.c
    mine = (scope.where(EXPERIENCE), columns.claimed_by == consumer, columns.state == TRAINED)
    held = (columns.payload_bytes.is_not(None), columns.trained_step.is_not(None))
    return [*mine, columns.retired_step.is_(None), *held]


def _last_cool(connection: Connection, scope: Scope, *, consumer: str, replay: Replay) -> int:
    """Return the last step whose rollouts have cooled down, 0 without any."""
    own_steps = and_(scope.where(TRAIN_STEP), TRAIN_STEP.c.consumer == consumer)
    is_cool = TRAIN_STEP.c.committed_at <= clock(connection) - replay.cooldown_s
    newest = select(TRAIN_STEP.c.step).where(own_steps, is_cool).order_by(TRAIN_STEP.c.step.desc()).limit(1)
    return connection.scalar(newest) or 0


def ranked(rollouts: Iterable[BufferedRollout], replay: Replay) -> Held:
    """Return rollouts by priority: kept, evicted and spent ones."""
    result = Held()
    staying: list[BufferedRollout] = []
    for rollout in rollouts:
        rollout.priority, stays = replay.priority(rollout.item)
        rollout.stays = rollout.is_new or stays
        (staying if rollout.stays else result.spent).append(rollout)
    room = replay.capacity
    for rollout in sorted(staying, key=lambda one: (-one.priority, one.ids[0])):
        room -= len(rollout.ids)
        (result.kept if room >= 0 else result.evicted).append(rollout)
    return result


def claim(
    connection: Connection, token: ConsumerToken, limits: Limits, *, replay: Replay, lease_s: float
) -> tuple[list[int], int]:
    """Claim the best rollouts within `limits`.

    Spent rollouts and those beyond the capacity leave the buffer.

    Returns:
        the ids of the rows in the order of their use, and the number of experiences evicted; nothing happens if fewer
        rollouts are there than `limits.at_least`.
    """
    have = held(connection, Scope.of(token), consumer=token.consumer, replay=replay, max_version=limits.max_version)
    chosen = have.claimable[: limits.n]
    if len(chosen) < max(limits.at_least, 1):
        return [], 0
    _let_go(connection, token, have)
    ids = [number for rollout in chosen for number in rollout.ids]
    claims.take(connection, token, ids, lease_s=lease_s)
    return ids, sum(len(rollout.ids) for rollout in have.evicted)


def _let_go(connection: Connection, token: ConsumerToken, have: Held) -> None:
    """Retire or drop the rollouts that leave the buffer.

    Those that were trained are retired, the others dropped.
    """
    step = ledger.last_step(connection, token) + 1
    new = [number for rollout in have.evicted if rollout.is_new for number in rollout.ids]
    old = [n for rollout in (*have.evicted, *have.spent) if not rollout.is_new for n in rollout.ids]
    dropped = {"state": DROPPED, "drop_reason": EVICTED, "claimed_by": token.consumer, "trained_step": step}
    if new:
        counts = {fates.of_drop(EVICTED): fates.num_first_unused(connection, new)}
        fates.add(connection, Scope.of(token), Owner.consumer(token.consumer), step=step, counts=counts)
    for ids, values in ((new, dropped), (old, {"retired_step": step})):
        for rows in of_ids(EXPERIENCE.c.id, ids):
            connection.execute(update(EXPERIENCE).where(rows).values(**values))


def retire(connection: Connection, token: ConsumerToken, *, uids: Sequence[str]) -> list[str]:
    """Retire claimed rows that were trained before.

    They return to the state trained and are not used again. Return the other ids of `uids`.
    """
    step = ledger.last_step(connection, token) + 1
    known: set[str] = set()
    columns = EXPERIENCE.c
    mine = and_(Scope.of(token).where(EXPERIENCE), columns.state == CLAIMED, columns.claimed_by == token.consumer)
    for part in chunks(uids):
        used = and_(mine, among(columns.uid, part), columns.use_count > 0)
        known.update(connection.scalars(select(columns.uid).where(used)))
        values = {"state": TRAINED, "retired_step": step, "lease_until": None}
        connection.execute(update(EXPERIENCE).where(used).values(**values))
    return [uid for uid in uids if uid not in known]
