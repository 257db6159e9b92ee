"""The staleness bound: whether a producer may begin a batch now.

A batch must not get too old before it is trained. The decision uses only the log, so that it holds for several
producers and after a restart of any of them. The oldest version that a batch may be sampled with follows from the
step that will train it:

    log:  [ waiting rollouts ][ batches in flight ][ this batch ]
                                                              ^ trained in step `last_step`
    engine's version < required_version: the producer waits; otherwise it begins the batch

Where tasks begin one by one, a batch here is one task (see `UntrainedRollouts.room`). Tasks reach the log in the order
in which they end, so the bound counts rollouts: when a task begins, the rollouts that began before it and are not
trained fit, with its own, into the steps until `last_step`. A task that others overtake is trained in a later step, and
they in an earlier one: such an exchange does not change the sum of the stalenesses, so that their mean keeps the bound
as if all rollouts were trained in the order in which they began.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, select

from trinity.buffer.store import ledger
from trinity.buffer.store.scope import Scope
from trinity.buffer.store.tables import CONSUMER, EXPERIENCE, NO_ROOM, PRODUCER, TRAIN_STEP, read_wait
from trinity.buffer.store.types import NO_TASK
from trinity.common.schema.sql_schema import CLAIMED, READY


@dataclass(frozen=True)
class StalenessBound:
    """The bound, and the sizes that it depends on.

    Attributes:
        max_staleness: most versions between the weights that sample and those that are trained, >= 0.
        rollouts: of a batch of this producer.
        rollouts_per_step: that a training step takes.
        max_batches: that another producer of the same kind may have under way.
        interval: training steps between two versions; 1 where the trainer publishes any version that it is asked for.
    """

    max_staleness: int
    rollouts: int
    rollouts_per_step: int
    max_batches: int = 1
    interval: int = 1


@dataclass(frozen=True)
class UntrainedRollouts:
    """What waits to be trained.

    Attributes:
        step: last training step that was committed.
        claimed: rollouts that the step under way trains.
        ready: rollouts that are in the log and not claimed.
        busy: other producers that may append more before the next version.
    """

    step: int
    claimed: int
    ready: int
    busy: int

    def last_step(self, bound: StalenessBound, *, in_flight: int) -> int:
        """Return the latest step that trains a batch which begins now.

        More exactly, the step in which its last rollout is trained, at the latest. The log is trained in order. A step
        takes fewer rollouts only where no producer has a batch under way; it then takes all there are, so that nothing
        is delayed.

        Args:
            bound: sizes of a batch and of a training step.
            in_flight: batches of this producer that are under way already.
        """
        ahead = self.ready + (in_flight + self.busy * bound.max_batches + 1) * bound.rollouts
        return self.step + (self.claimed > 0) + math.ceil(ahead / bound.rollouts_per_step)

    def required_version(self, bound: StalenessBound, *, in_flight: int) -> int:
        """Return the oldest version allowed for a batch that begins now."""
        return self.last_step(bound, in_flight=in_flight) - 1 - bound.max_staleness

    def awaited_version(self, bound: StalenessBound, *, in_flight: int) -> int:
        """Return the oldest published version that may let a waiting batch begin.

        That is `required_version`, but at most the version of the next step, after which the producer looks again; or
        else the first multiple of the interval after it, since no other is published. The version of `step` itself may
        still be on its way when the step is committed. A producer that waits for it will append, so the next step must
        not be trained with an incomplete batch.
        """
        oldest = min(self.step + 1, self.required_version(bound, in_flight=in_flight))
        return math.ceil(oldest / bound.interval) * bound.interval

    def room(self, bound: StalenessBound, *, version: int, in_flight: int) -> int:
        """Return how many further batches may begin now on `version`, >= 0.

        That is the number for which `version` is not below `required_version` of the last of them.
        """
        steps = version + 1 + bound.max_staleness - self.step - (self.claimed > 0)
        batches = (steps * bound.rollouts_per_step - self.ready) // bound.rollouts
        return max(0, batches - in_flight - self.busy * bound.max_batches)

    @property
    def is_empty(self) -> bool:
        """No rollout waits, and no other producer may append more."""
        return not (self.claimed or self.ready or self.busy)


def enter_batch(
    connection: Connection, scope: Scope, *, producer: str, version: int, bound: StalenessBound, in_flight: int
) -> UntrainedRollouts:
    """Return what is untrained; record whether the producer begins a batch.

    See `ProducerBoard.enter_batch`.
    """
    step = _last_step(connection, scope)
    columns = EXPERIENCE.c
    statement = select(columns.state, columns.id, columns.task_id, columns.run_id)
    rows = connection.execute(statement.where(scope.where(EXPERIENCE), columns.state.in_((READY, CLAIMED)))).all()
    others = select(PRODUCER.c.wait_version).where(
        scope.where(PRODUCER), PRODUCER.c.producer != producer, PRODUCER.c.is_open == 1
    )
    waits = [read_wait(stored)[0] for stored in connection.scalars(others)]
    busy = sum(1 for wait in waits if wait is None or wait == NO_ROOM or wait <= step)
    untrained = UntrainedRollouts(step, _rollouts(rows, CLAIMED), _rollouts(rows, READY), busy)
    if version >= untrained.required_version(bound, in_flight=in_flight):
        ledger.upsert_producer(connection, scope, producer=producer, values={"wait_version": None})
    elif not in_flight:
        awaited = untrained.awaited_version(bound, in_flight=in_flight)
        ledger.upsert_producer(connection, scope, producer=producer, values={"wait_version": awaited})
    return untrained


def _last_step(connection: Connection, scope: Scope) -> int:
    """Return the last training step of the run's own trainer.

    Each consumer's last step is at the end of an index. Other jobs that train on the buffer as a queue of
    demonstrations have a slash in their names, and steps of their own.
    """
    own = and_(scope.where(TRAIN_STEP), TRAIN_STEP.c.consumer == CONSUMER.c.consumer)
    last = select(func.max(TRAIN_STEP.c.step)).where(own).correlate(CONSUMER).scalar_subquery()
    of_own = select(last).where(scope.where(CONSUMER), ~CONSUMER.c.consumer.contains("/"))
    return max((step or 0 for step in connection.scalars(of_own)), default=0)


def _rollouts(rows: Iterable[Any], state: str) -> int:
    own = [row for row in rows if row.state == state]
    return len({(row.id, None) if row.task_id == NO_TASK else (row.task_id, row.run_id) for row in own})
