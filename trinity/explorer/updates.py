"""The engine follows the trainer: which weights the next batch is explored with where no fixed schedule says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from trinity.buffer.store.backlog import Backlog, Pace
from trinity.common.config.resolved import filled, num_rollouts
from trinity.common.constants import SyncStyle
from trinity.common.errors import SyncError
from trinity.explorer.assembly import experience_buffer, store_scope
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.common.config import Config
    from trinity.synchronizer.schedule import DynamicSchedule
    from trinity.synchronizer.served import ServedWeights
    from trinity.synchronizer.synchronizer import Synchronizer

logger = get_logger("explorer")

FOLLOW_POLL_S = 0.2


def pace_of(config: Config) -> Pace | None:
    """Return the bound of `synchronizer.max_staleness` with the sizes that it depends on; None without a bound."""
    limit, buffer = config.synchronizer.max_staleness, config.buffer
    if limit is None:
        return None
    taskset = buffer.explorer_input.taskset
    repeats = config.algorithm.repeat_times if taskset is None else taskset.repeat_times
    rollouts = buffer.batch_size * filled(repeats, "algorithm.repeat_times")
    return Pace(limit, rollouts, max(1, num_rollouts(config)), batches_at_once(config))


def batches_at_once(config: Config) -> int:
    """Return how many explore steps may be under way: one, unless the style is `fully_async`.

    In deterministic mode it is one as well: the rounds of the engine are those of one batch.
    """
    is_async = config.synchronizer.sync_style == SyncStyle.FULLY_ASYNC and not config.deterministic
    return config.explorer.max_inflight_batches if is_async else 1


class WeightUpdates:
    """Gives the engine newer weights, and says when the next batch may begin.

    Args:
        config: resolved configuration of the stage.
        schedule: when to ask.
        served: the engine and what it serves.
        store: holds what is not trained yet.
        synchronizer: source of newer weights.
        call: runs a blocking call.

    Attributes:
        lock: held while the weights change.
        times: what the last admission and hand-over took, as metrics.
    """

    def __init__(
        self,
        config: Config,
        schedule: DynamicSchedule,
        *,
        served: ServedWeights,
        store: ExperienceStore,
        synchronizer: Synchronizer,
        call: Callable[..., Coroutine[Any, Any, Any]],
    ) -> None:
        self.schedule = schedule
        self.engine = served.engine
        self.synchronizer = synchronizer
        self.times: dict[str, float] = {}
        self._pace = pace_of(config)
        self._timeout_s = config.synchronizer.sync_timeout
        self._name = config.explorer.name
        self._served = served
        self.lock = asyncio.Lock()
        self._is_first = True
        self._call = call
        self._store = store
        self._place: dict[str, str] = {"buffer": experience_buffer(config), "producer": self._name}
        self._place |= store_scope(config)

    async def admit(self, step: int, *, in_flight: int = 0) -> bool | None:
        """Return whether explore step `step` may begin: true; false if the trainer has ended; None if not yet.

        None comes only with something under way; without, the answer is waited for.

        Raises:
            SyncError: the trainer gave no newer weights before `synchronizer.sync_timeout` (E5501), or no step can
                ever begin under the bound (E5510).
        """
        started = time.perf_counter()
        asks = self.schedule.is_asked_before(step)
        if asks:
            await self.synchronizer.ask(timeout_s=self._timeout_s, explorer=self._name)
        if asks or self._is_first or self.schedule.style != SyncStyle.DYNAMIC_BY_EXPLORER:
            self._is_first = False  # a process that begins takes what there is, whatever the step
            await self.take_newest()
        while not await self.synchronizer.is_trainer_finished():
            version = self.engine.model_version
            if self._pace is None:
                return self._begin(started)
            now = {"version": version, "pace": self._pace, "in_flight": in_flight}
            backlog: Backlog = await self._call(self._store.enter_batch, **self._place, **now)
            if version >= backlog.required_version(self._pace, in_flight=in_flight):
                return self._begin(started)
            if in_flight:
                return None
            self._check_possible(backlog, version, step=step)
            await self.synchronizer.ask(version + 1, timeout_s=self._timeout_s, explorer=self._name)
            await self.take_newest()
        logger.info("the trainer has finished: no explore step %d", step)
        return False

    async def take_newest(self) -> None:
        """Let the engine load the newest version, unless it serves it already.

        Raises:
            SyncError: the weights could not be had; the engine keeps its version.
        """
        async with self.lock:
            self.times |= await self._served.take_newest()

    async def follow(self) -> None:
        """Let the engine load every version soon after it is published; goes on until it is cancelled.

        Raises:
            SyncError: the weights could not be had.
        """
        while True:
            await asyncio.sleep(FOLLOW_POLL_S)
            await self.take_newest()

    def _begin(self, started: float) -> bool:
        self.times["time/wait_weight"] = time.perf_counter() - started
        return True

    def _check_possible(self, backlog: Backlog, version: int, *, step: int) -> None:
        pace = self._pace
        if pace is None or not backlog.is_empty or version < backlog.step:
            return
        least = -(-pace.rollouts // pace.rollouts_per_step) - 1
        if pace.max_staleness < least:
            raise SyncError(
                f"explore step {step} cannot begin: its {pace.rollouts} rollouts are trained in steps of "
                f"{pace.rollouts_per_step}, so that the last are {least} versions old, and "
                f"synchronizer.max_staleness is {pace.max_staleness}; raise it to {least}",
                code="E5510",
            )
