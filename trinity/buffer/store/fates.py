"""What happened to every rollout.

    issued = trained + filtered + stale + failed + waiting

    producer, in the transaction of an explore step: issued, filtered/<operator>, failed/<kind>
    consumer, in the transaction of a training step: trained, stale, filtered/<reason>
    store, when it finds a damaged payload:          failed/unreadable

Each producer, each consumer and the store has its own totals, which add up over its steps: a consumer that resumes at
step `cut` takes back the totals of later steps, and a producer's step is counted once, however often it is explored.
Waiting rollouts are counted in the rows themselves, so that the equation fails if a row is lost or counted twice. One
row of each rollout, which has `is_first` set, is counted for it.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, insert, literal, select, union_all

from trinity.buffer.store.scope import Scope, among, chunks
from trinity.buffer.store.tables import CONSUMER, EXPERIENCE, FATE, PRODUCER
from trinity.buffer.store.types import Fates
from trinity.common.errors import StoreError
from trinity.common.schema.sql_schema import CLAIMED, DROPPED, READY, TRAINED

ISSUED, ENDED_TRAINED, STALE = "issued", "trained", "stale"
MAX_COUNTED = 16384
"""Most waiting rollouts that are counted in the rows after each step, which takes up to 15 ms.

More are counted when counting has taken at most `MAX_TIME_FRAC` of the time since the last count.
"""
MAX_TIME_FRAC = 0.01


@dataclass(frozen=True)
class Owner:
    """Who counts: a producer, a consumer or the store itself."""

    side: str
    name: str = ""

    @classmethod
    def producer(cls, name: str) -> Owner:
        """Return the producer `name`."""
        return cls("producer", name)

    @classmethod
    def consumer(cls, name: str) -> Owner:
        """Return the consumer `name`."""
        return cls("consumer", name)

    def where(self, scope: Scope) -> ColumnElement[bool]:
        """Return the condition for its rows in the table `fate`."""
        return and_(scope.where(FATE), FATE.c.side == self.side, FATE.c.owner == self.name)


STORE = Owner("store")
_NEXT_COUNTS: WeakKeyDictionary[Engine, dict[Scope, float]] = WeakKeyDictionary()
"""When many rollouts are counted again, in seconds of the monotonic clock."""
_NEWEST = FATE.alias()  # one alias for all statements: `Scope.where` caches its condition for each table


def filtered(name: str) -> str:
    """Return the fate of a rollout that `name` has left out."""
    return f"filtered/{name}"


def failed(kind: str) -> str:
    """Return the fate of a rollout that gave nothing that can be trained."""
    return f"failed/{kind}"


def of_drop(reason: str) -> str:
    """Return the fate of a rollout that was dropped from the log for `reason`."""
    return STALE if reason == STALE else filtered(reason)


def add(connection: Connection, scope: Scope, owner: Owner, *, step: int, counts: Mapping[str, int]) -> dict[str, int]:
    """Add what happened to rollouts in `step` to the owner's totals.

    Return these totals.
    """
    at, totals = _newest(connection, scope, owner, up_to=step)
    for fate, number in counts.items():
        totals[fate] += number
    if at == step:
        connection.execute(delete(FATE).where(owner.where(scope), FATE.c.step == step))
    tags = {**scope.values, "side": owner.side, "owner": owner.name, "step": step}
    if totals:
        connection.execute(insert(FATE), [{**tags, "fate": fate, "rollouts": n} for fate, n in sorted(totals.items())])
    return dict(totals)


def until(connection: Connection, scope: Scope, owner: Owner, *, step: int) -> dict[str, int]:
    """Return the owner's totals up to and including `step`."""
    return dict(_newest(connection, scope, owner, up_to=step)[1])


def take_back(connection: Connection, scope: Scope, *, consumer: str, cut: int) -> None:
    """Forget what a consumer has counted in steps after `cut`."""
    connection.execute(delete(FATE).where(Owner.consumer(consumer).where(scope), FATE.c.step > cut))


def of_buffer(connection: Connection, scope: Scope, *, own: Mapping[str, int] | None = None) -> Fates:
    """Return what happened to all rollouts of a buffer.

    Raises:
        StoreError: the numbers do not add up (E5213).
    """
    totals: Counter[str] = Counter()
    for fate, number in connection.execute(_newest_of_all(scope)):
        totals[fate] += number
    issued = totals.pop(ISSUED, 0)
    ended = {ENDED_TRAINED: 0} | {fate: number for fate, number in sorted(totals.items()) if number}
    expected = issued - sum(ended.values())
    if expected > MAX_COUNTED and time.monotonic() < _next_counts(connection).get(scope, 0.0):
        return Fates(issued, ended, expected, own or {})
    waiting = _num_waiting(connection, scope)
    found = Fates(issued, ended, waiting, own or {})
    if waiting != expected:
        raise StoreError(
            f"the rollouts of buffer {scope.buffer!r} of run {scope.run!r} do not add up: {found}, which is "
            f"{sum(ended.values()) + waiting}; rows were changed by something else than this program, or this is a bug "
            "of it: keep the database, and start a new run",
            code="E5213",
        )
    return found


def num_first(connection: Connection, scope: Scope, *, uids: Sequence[str]) -> int:
    """Return how many rollouts the rows of `uids` stand for."""
    where = (scope.where(EXPERIENCE), EXPERIENCE.c.is_first == 1)
    return sum(_count(connection, *where, among(EXPERIENCE.c.uid, part)) for part in chunks(uids))


def num_first_unused(connection: Connection, ids: Sequence[int]) -> int:
    """Return how many rollouts the rows stand for.

    Those that were trained are not counted.
    """
    where = (EXPERIENCE.c.is_first == 1, EXPERIENCE.c.use_count == 0)
    return sum(_count(connection, *where, among(EXPERIENCE.c.id, part)) for part in chunks(ids))


def num_newly_trained(connection: Connection, scope: Scope, *, consumer: str, step: int) -> int:
    """Return how many rollouts were trained for the first time in `step`."""
    columns = EXPERIENCE.c
    used = (scope.where(EXPERIENCE), columns.claimed_by == consumer, columns.trained_step == step)
    return _count(connection, *used, columns.state == TRAINED, columns.is_first == 1, columns.use_count == 1)


def appended(rows: Iterable[Mapping[str, Any]], *, known: set[str], given: Mapping[str, int] | None) -> dict[str, int]:
    """Return what happened to the rollouts of an explore step.

    Args:
        rows: of its experiences.
        known: ids of those that the log had already.
        given: what the producer has counted; None: it has issued these rows, and nothing else.
    """
    first = [row for row in rows if row["is_first"]]
    counts = Counter(dict(given) if given is not None else {ISSUED: len(first)})
    counts[filtered("duplicate")] += sum(row["uid"] in known for row in first)
    counts[failed("oversize")] += sum(row["state"] == DROPPED for row in first if row["uid"] not in known)
    return {fate: number for fate, number in counts.items() if number or fate == ISSUED}


def _count(connection: Connection, *where: ColumnElement[bool]) -> int:
    return connection.scalar(select(func.count()).select_from(EXPERIENCE).where(*where)) or 0


def _num_waiting(connection: Connection, scope: Scope) -> int:
    """Return the waiting rollouts, and say when many are counted again."""
    started = time.monotonic()
    found = connection.scalar(_waiting(scope)) or 0
    ended = time.monotonic()
    _next_counts(connection)[scope] = ended + (ended - started) / MAX_TIME_FRAC
    return found


def _next_counts(connection: Connection) -> dict[Scope, float]:
    return _NEXT_COUNTS.setdefault(connection.engine, {})


# The same statements are executed at every step, and building one takes as long as executing it.
@functools.lru_cache(maxsize=64)
def _waiting(scope: Scope) -> Any:
    """Return the statement for the number of waiting rollouts."""
    columns = EXPERIENCE.c
    waits = (columns.state.in_((READY, CLAIMED)), columns.use_count == 0, columns.is_first == 1)
    return select(func.count()).select_from(EXPERIENCE).where(scope.where(EXPERIENCE), *waits)


def _newest(connection: Connection, scope: Scope, owner: Owner, *, up_to: int) -> tuple[int | None, Counter[str]]:
    """Return an owner's last step with totals up to `up_to`, and the totals."""
    last = select(func.max(FATE.c.step)).where(owner.where(scope), FATE.c.step <= up_to).scalar_subquery()
    rows = connection.execute(
        select(FATE.c.step, FATE.c.fate, FATE.c.rollouts).where(owner.where(scope), FATE.c.step == last)
    ).all()
    return (rows[0].step if rows else None), Counter({row.fate: row.rollouts for row in rows})


@functools.lru_cache(maxsize=64)
def _newest_of_all(scope: Scope) -> Any:
    """Return the statement for the newest totals of every owner.

    It takes one search of an index for each owner.
    """
    owners = union_all(
        select(literal("producer").label("side"), PRODUCER.c.producer.label("owner")).where(scope.where(PRODUCER)),
        select(literal("consumer"), CONSUMER.c.consumer).where(scope.where(CONSUMER)),
        select(literal(STORE.side), literal(STORE.name)),
    ).subquery()
    same = and_(scope.where(_NEWEST), _NEWEST.c.side == owners.c.side, _NEWEST.c.owner == owners.c.owner)
    last = select(func.max(_NEWEST.c.step)).where(same).correlate(owners).scalar_subquery()
    mine = and_(scope.where(FATE), FATE.c.side == owners.c.side, FATE.c.owner == owners.c.owner, FATE.c.step == last)
    return select(FATE.c.fate, FATE.c.rollouts).select_from(owners.join(FATE, mine))
