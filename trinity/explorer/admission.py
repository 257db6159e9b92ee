"""When an explore step may begin, and with which weights.

There is one class for each way to serve weights.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from trinity.algorithm.planning import num_rollouts
from trinity.buffer.store.staleness import StalenessBound, UntrainedRollouts
from trinity.common.config.resolved import num_explored, publication_interval
from trinity.common.constants import SyncStyle
from trinity.common.errors import SyncError
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.explorer.producer import Producer
    from trinity.synchronizer.schedule import DynamicSchedule, FixedSchedule
    from trinity.synchronizer.served import ServedWeights

logger = get_logger("explorer")

FOLLOW_POLL_S = 0.2


class Admission(Protocol):
    """Admits explore steps and loads their weights into the engine."""

    async def admit(self, step: int, *, in_flight: int = 0) -> bool | None:
        """Return whether explore step `step` may begin.

        True: it may. False: the trainer has ended. None: not yet.

        None is returned only while batches are under way (`in_flight` above 0); otherwise this waits for the answer.

        Raises:
            SyncError: the weights did not come before `synchronizer.sync_timeout` (E5501).
        """


class FollowingAdmission(Admission, Protocol):
    """An admission that loads newer weights while steps are under way."""

    lock: asyncio.Lock
    """Held while the weights change; who holds it has the engine as it is."""

    async def follow(self) -> None:
        """Load every version soon after it is published, until cancelled."""


class TaskAdmission(FollowingAdmission, Protocol):
    """An admission of single tasks."""

    async def admit_tasks(self, *, most: int, in_flight: int, is_idle: bool, step: int) -> int | None:
        """Return how many tasks may begin now, at most `most`.

        None: the trainer has ended. With `is_idle`, a number above 0 is waited for.

        Args:
            most: tasks that could begin.
            in_flight: tasks that have begun and are not in the log.
            is_idle: none of them is under way, so that the log gets no more unless others begin.
            step: explore step to come.

        Raises:
            SyncError: the trainer gave no newer weights before `synchronizer.sync_timeout` (E5501), or no task can ever
                begin under the bound (E5510).
        """


class FixedAdmission:
    """What the two admissions of style `fixed` have in common.

    Args:
        schedule: says which version serves which step, and when to look for a newer one.
        served: the engine and what it serves.
        producer: the explorer in the store.
        timeout_s: longest wait for a version.
    """

    def __init__(self, schedule: FixedSchedule, *, served: ServedWeights, producer: Producer, timeout_s: float) -> None:
        self._schedule = schedule
        self._served = served
        self._producer = producer
        self._timeout_s = timeout_s

    async def _wait_for(self, version: int) -> int:
        """Wait for `version` or the trainer's end; return the newest version.

        The store records the wait, so the trainer's reader knows of it.
        """
        await self._producer.announce_wait(version)
        synchronizer, explorer = self._served.synchronizer, self._served.explorer
        return await synchronizer.wait_for_version(version, timeout_s=self._timeout_s, explorer=explorer)


class ScheduledAdmission(FixedAdmission):
    """`Admission` of style `fixed` within one run.

    The schedule says which version serves which step.
    """

    async def admit(self, step: int, *, in_flight: int = 0) -> bool:
        """Make the engine serve the version of `step`; see `Admission`."""
        version = self._schedule.version_for(step)
        if version <= self._served.engine.model_version:
            return True
        started = time.perf_counter()
        newest = await self._wait_for(version)
        if newest < version:
            logger.info("the trainer has finished with version %d: no explore step %d", newest, step)
            return False
        self._served.note_wait(started)
        await self._served.take(version)
        return True


class ApartAdmission(FixedAdmission):
    """`Admission` of style `fixed` for explorers that run apart.

    Takes the newest version, and waits only if that version is too old.

    It does so at the schedule's points of synchronisation, and before the first step of this process.
    """

    _is_first = True

    async def admit(self, step: int, *, in_flight: int = 0) -> bool:
        """Load the newest version into the engine when due; see `Admission`."""
        synchronizer = self._served.synchronizer
        is_first, self._is_first = self._is_first, False
        if is_first or self._schedule.is_sync_point(step):
            started = time.perf_counter()
            required = await synchronizer.required_version()
            if await synchronizer.newest_version() < required:
                await self._wait_for(required)
            self._served.note_wait(started)
            await self._served.take_newest()
        if await synchronizer.is_trainer_finished():
            logger.info("the trainer has finished: no explore step %d", step)
            return False
        return True


def bound_of(config: Config) -> StalenessBound | None:
    """Return the bound of `synchronizer.max_staleness`, or None without one.

    The result holds the sizes that the bound depends on.
    """
    limit = config.synchronizer.max_staleness
    if limit is None:
        return None
    return StalenessBound(
        limit,
        rollouts=num_explored(config),
        rollouts_per_step=max(1, num_rollouts(config)),
        max_batches=batches_at_once(config),
        interval=publication_interval(config),
    )


def batches_at_once(config: Config) -> int:
    """Return how many explore steps may be under way.

    This is one, unless the style is `fully_async`.

    In deterministic mode it is one as well: the rounds of the engine are those of one batch.
    """
    is_async = config.synchronizer.sync_style == SyncStyle.FULLY_ASYNC and not config.deterministic
    return config.explorer.max_inflight_batches if is_async else 1


def is_streamed(config: Config) -> bool:
    """Return whether the tasks of explore steps begin one by one.

    They do where samples continue across weight updates (`synchronizer.update_in_flight` with style `fully_async`), but
    not in deterministic mode. A step then takes the tasks that ended first, so no task is late. With
    `explorer.over_rollout`, the tasks of a step begin together, and the late ones of them are abandoned.
    """
    goes_on = config.synchronizer.update_in_flight and config.synchronizer.sync_style == SyncStyle.FULLY_ASYNC
    return goes_on and not config.deterministic and config.explorer.over_rollout.ratio == 0


class BoundedAdmission:
    """`Admission` of the other styles: a staleness bound delays steps.

    The engine loads newer versions before a step when the schedule says so, and with `follow` soon after each is
    published.

        admit --no bound, or version is new enough--> begin the step
          |  ^
          |  +-- too old: request a newer version and load it
          +--too old, other steps under way--> None (not yet)
          +--too old, no version can help----> SyncError (E5510)
          +--trainer finished----------------> False

    Args:
        config: resolved configuration of the stage.
        schedule: when to ask.
        served: the engine and what it serves.
        producer: the explorer in the store, which holds what is not trained yet.

    Attributes:
        lock: held while the weights change.
    """

    def __init__(self, config: Config, schedule: DynamicSchedule, *, served: ServedWeights, producer: Producer) -> None:
        self.lock = asyncio.Lock()
        self._schedule = schedule
        self._served = served
        self._producer = producer
        self._bound = bound_of(config)
        self._batch_size = config.buffer.batch_size
        self._timeout_s = config.synchronizer.sync_timeout
        self._is_first = True

    async def admit(self, step: int, *, in_flight: int = 0) -> bool | None:
        """Return whether explore step `step` may begin; see `Admission`.

        Raises:
            SyncError: the trainer gave no newer weights before `synchronizer.sync_timeout` (E5501), or no step can
                ever begin under the bound (E5510).
        """
        started, synchronizer = time.perf_counter(), self._served.synchronizer
        asks = self._schedule.is_requested_before(step)
        if asks:
            await self._request(0)
        if asks or self._is_first or self._schedule.style != SyncStyle.DYNAMIC_BY_EXPLORER:
            self._is_first = False  # a process that begins takes what there is, whatever the step
            await self.take_newest()
        while not await synchronizer.is_trainer_finished():
            version = self._served.engine.model_version
            if self._bound is None:
                self._served.note_wait(started)
                return True
            untrained = await self._producer.enter_batch(version, self._bound, in_flight=in_flight)
            if version >= untrained.required_version(self._bound, in_flight=in_flight):
                self._served.note_wait(started)
                return True
            if in_flight:
                return None
            self._check_possible(untrained, version, step=step)
            await self._request(version + 1)
            await self.take_newest()
        logger.info("the trainer has finished: no explore step %d", step)
        return False

    async def admit_tasks(self, *, most: int, in_flight: int, is_idle: bool, step: int) -> int | None:
        """Return how many tasks may begin now; see `TaskAdmission`."""
        started = time.perf_counter()
        if self._is_first:
            self._is_first = False
            await self.take_newest()
        while not await self._served.synchronizer.is_trainer_finished():
            version, bound = self._served.engine.model_version, self._of_tasks()
            if bound is None:
                return most
            untrained = await self._producer.enter_batch(version, bound, in_flight=in_flight)
            room = untrained.room(bound, version=version, in_flight=in_flight)
            if room or not is_idle:
                self._served.note_wait(started)
                return min(room, most)
            self._check_possible(untrained, version, step=step)
            # Ended tasks stay out of the log until other tasks complete their step; the trainer must not wait for that.
            await self._producer.announce_wait(untrained.awaited_version(bound, in_flight=in_flight))
            await self._request(version + 1)
            await self.take_newest()
        logger.info("the trainer has finished: no further task of explore step %d", step)
        return None

    def _of_tasks(self) -> StalenessBound | None:
        """Return the bound with tasks in the place of batches."""
        bound, size = self._bound, self._batch_size
        if bound is None:
            return None
        return replace(bound, rollouts=max(1, bound.rollouts // size), max_batches=bound.max_batches * size)

    async def _request(self, version: int) -> None:
        """Let the trainer publish `version` or a newer one; 0: what it has."""
        await self._served.synchronizer.request(version, timeout_s=self._timeout_s, explorer=self._served.explorer)

    async def take_newest(self) -> None:
        """Let the engine load the newest version, unless it serves it already.

        Raises:
            SyncError: the weights could not be had; the engine keeps its version.
        """
        async with self.lock:
            await self._served.take_newest()

    async def follow(self) -> None:
        """Load every version into the engine soon after it is published.

        Runs until it is cancelled.

        Raises:
            SyncError: the weights could not be had.
        """
        while True:
            await asyncio.sleep(FOLLOW_POLL_S)
            await self.take_newest()

    def _check_possible(self, untrained: UntrainedRollouts, version: int, *, step: int) -> None:
        bound = self._bound
        if bound is None or not untrained.is_empty or version < untrained.step:
            return
        least = -(-bound.rollouts // bound.rollouts_per_step) - 1
        if bound.max_staleness < least:
            raise SyncError(
                f"explore step {step} cannot begin: its {bound.rollouts} rollouts are trained in steps of "
                f"{bound.rollouts_per_step}, so that the last are {least} versions old, and "
                f"synchronizer.max_staleness is {bound.max_staleness}; raise it to {least}",
                code="E5510",
            )
