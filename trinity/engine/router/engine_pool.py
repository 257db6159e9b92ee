"""The engines behind a router: start, weights, health and replacement."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from trinity.common.errors import EngineError, EnginesLostError, SyncError
from trinity.common.models.inference_model import InferenceModel
from trinity.engine.gauge import NOW
from trinity.engine.router.slot import EngineSlot, EngineSource, is_engine_failure
from trinity.utils.deadline import bounded, telling, within
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

logger = get_logger("explorer")

RECOVERY_KEY = "explorer.engine_recovery_timeout"
PROBE_KEY = "explorer.engine_probe_timeout"
PREPARE_TIMEOUT_S = 1800.0
END_TIMEOUT_S = 60.0
RESTART_FIRST_WAIT_S = 1.0
RESTART_MAX_WAIT_S = 60.0
OF_LIVING = frozenset({"tokens_per_second", "num_slots", *NOW})
"""Figures of an engine that are no totals, and are dropped when the engine is lost."""
_DRAIN_POLL_S = 0.05

Give = Callable[[InferenceModel], Awaitable[None]]


@dataclass(frozen=True)
class EnginePoolSettings:
    """Number of engines, and deadlines of their health checks in seconds.

    Attributes:
        count: engines at the start.
        probe_first_wait_s: time from the start of the engines to the first probe.
        probe_interval_s: time between two probes.
        probe_timeout_s: longest wait for an answer to a probe.
        recovery_timeout_s: longest time without any serving engine.
        sync_timeout_s: longest time for an engine to load new weights.
    """

    count: int
    probe_first_wait_s: float = 30.0
    probe_interval_s: float = 10.0
    probe_timeout_s: float = 20.0
    recovery_timeout_s: float = 300.0
    sync_timeout_s: float = 3600.0


class EnginePool:
    """The engines of a router, and the replacement of failed ones.

    An engine that fails, or misses the deadline of a probe, is ended and restarted. It serves once it has loaded the
    current weights. All methods belong to one event loop.

        start -> up, older weights -- weights loaded --> serving -- remove --> leaving -> ended
          ^       |        ^                             |     |
          |       |        +------- new version ---------+     |
          |       | failed                                     | failed, or late for a probe
          +--- lost <------------------------------------------+
        retry at once, then after 1 s, doubling up to 60 s; `recovery_timeout_s` without any engine ends the run

    Args:
        source: starts and ends engines.
        settings: number and deadlines.
        on_start: called with an engine that is up and does not serve yet.
    """

    def __init__(
        self, source: EngineSource, settings: EnginePoolSettings, *, on_start: Callable[[EngineSlot], Awaitable[None]]
    ) -> None:
        self.settings = settings
        self.members: list[int] = []
        self.slots: dict[int, EngineSlot] = {}
        self.version = 0
        self.restart_count = 0
        self.restarts: Counter[int] = Counter()
        self.past: dict[str, float] = {}
        self._source = source
        self._on_start = on_start
        self._numbers = itertools.count()
        self._give: Give | None = None
        self._epoch = 0
        self._down_since: dict[int, float] = {}
        self._told_at = 0.0
        self._changed = asyncio.Event()
        self._reviving: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # --------------------------------------------------------------------- life
    async def start(self) -> None:
        """Start all engines together, then begin to probe them.

        Raises:
            TrinityError: the first failure of an engine to start; the others are ended.
        """
        numbers = [next(self._numbers) for _ in range(self.settings.count)]
        outcomes = await asyncio.gather(*(self._start(number) for number in numbers), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                await self.close()
                raise outcome
        self.members = numbers
        self._spawn(self._watch(), "engine-probes")

    async def add(self) -> int:
        """Start one more engine with the current weights; return its number.

        Raises:
            TrinityError: it does not start, or does not load the weights.
        """
        number = next(self._numbers)
        try:
            await self._start(number)
        except SyncError:
            await self._cast_out(self.slots[number])
            raise
        self.members.append(number)
        self._tell()
        return number

    async def remove(self, index: int, *, timeout_s: float) -> None:
        """End engine `index` once its requests are answered.

        It gets no new requests, and is ended after `timeout_s` even if some are still open.

        Raises:
            EngineError: no such engine, or it is the last one (E5633).
        """
        if index not in self.members or len(self.members) == 1:
            known = ", ".join(map(str, self.members))
            raise EngineError(
                f"engine {index} cannot be removed: engines are {known}, and one must stay; add another one before",
                code="E5633",
            )
        self.members.remove(index)
        self._down_since.pop(index, None)
        slot = self.slots.get(index)
        if slot is None:
            return
        slot.is_leaving = True
        deadline = time.monotonic() + timeout_s
        while slot.load and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        await self.probe(slot)
        if self.slots.get(index) is slot:
            self._drop(slot, EngineError(f"engine {index} was removed", code="E5631"))
            await self._end(slot.engine)

    async def close(self) -> None:
        """End all engines.

        Raises:
            TrinityError: the first failure of an engine to end.
        """
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
        slots, self.slots, self.members = list(self.slots.values()), {}, []
        for slot in slots:
            slot.give_up(EngineError("the engine is shut down", code="E5607"))
        outcomes = await asyncio.gather(*(self._ended(slot.engine) for slot in slots), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # ------------------------------------------------------------------- choice
    def serving(self) -> dict[int, EngineSlot]:
        """Return the engines that are up, not leaving and have current weights."""
        return {
            index: slot
            for index, slot in self.slots.items()
            if slot.epoch == self._epoch and not slot.is_leaving and slot.engine.model_version == self.version
        }

    async def wait(self, members: Sequence[int]) -> None:
        """Wait until an engine changes its state.

        Raises:
            EnginesLostError: none of `members` has been up for longer than `explorer.engine_recovery_timeout`.
        """
        changed = self._changed
        down = [self._down_since.get(index) for index in members]
        since = [moment for moment in down if moment is not None]
        limit_s = self.settings.recovery_timeout_s
        if len(since) < len(members):
            await _until(changed, limit_s)
            return
        left_s = max(since, default=time.monotonic()) + limit_s - time.monotonic()
        if left_s <= 0:
            raise EnginesLostError(
                f"no inference engine has served for {limit_s:g} s ({RECOVERY_KEY}), {self.restart_count} restarts; "
                "see the log for why the engines ended, correct it, and run the same command again to continue"
            )
        await _until(changed, left_s)

    # ------------------------------------------------------------------ weights
    async def update(self, give: Give, *, version: int) -> None:
        """Load new weights into every engine; none serves without them.

        If some engines succeed, those that fail are replaced. If all refuse them, those that have the weights before
        serve again.

        Raises:
            TrinityError: every engine failed, and at least one for a reason other than the loss of the engine.
        """
        before = self._give, self.version
        self._epoch += 1
        self._give, self.version = give, version
        slots = list(self.slots.values())
        outcomes = await asyncio.gather(*(self._take(slot) for slot in slots), return_exceptions=True)
        failed = [(s, o) for s, o in zip(slots, outcomes, strict=True) if isinstance(o, BaseException)]
        refused = [error for _, error in failed if not is_engine_failure(error)]
        is_refused = bool(refused) and len(failed) == len(slots)
        if is_refused and self._give is give:
            self._go_back_to(*before)
        for slot, error in failed:
            if not is_refused or is_engine_failure(error):
                self.lose(slot, error)
        if is_refused:
            raise refused[0]

    def _go_back_to(self, give: Give | None, version: int) -> None:
        """Let those engines serve again that still have the weights of `version`."""
        self._epoch += 1
        self._give, self.version = give, version
        for slot in self.slots.values():
            if slot.engine.model_version == version:
                slot.epoch = self._epoch
        self._tell()

    async def _take(self, slot: EngineSlot) -> None:
        """Load the current weights into an engine, until it has the newest."""
        async with slot.taking:
            while slot.epoch != self._epoch and slot.lost is None:
                epoch, give = self._epoch, self._give
                failpoint("engine.before_weights")
                if give is not None:
                    what = f"engine {slot.index} to take version {self.version}"
                    limit_s, key = self.settings.sync_timeout_s, "synchronizer.sync_timeout"
                    with telling(logger, what, every_s=self.settings.probe_timeout_s, limit_s=limit_s, setting=key):
                        await bounded(give(slot.engine), limit_s, what=what, setting=key)
                slot.epoch = epoch
        self._tell()

    # ------------------------------------------------------------------- health
    def lose(self, slot: EngineSlot, error: BaseException) -> None:
        """Give up an engine and start a replacement; later calls do nothing."""
        if self.slots.get(slot.index) is not slot:
            return
        logger.warning("engine %d is lost and will be started again: %s", slot.index, error)
        self._drop(slot, error)
        if slot.index in self.members:
            self._down_since.setdefault(slot.index, time.monotonic())
            self._spawn(self._replace(slot), f"engine-{slot.index}-restart")

    def _drop(self, slot: EngineSlot, error: BaseException) -> None:
        del self.slots[slot.index]
        slot.give_up(error)
        for name, value in slot.stats.items():
            if name not in OF_LIVING:
                self.past[name] = self.past.get(name, 0.0) + value
        self._tell()

    async def _replace(self, lost: EngineSlot) -> None:
        await self._end(lost.engine)
        if lost.index in self._reviving:
            return
        self._reviving.add(lost.index)
        try:
            await self._revive(lost.index)
        finally:
            self._reviving.discard(lost.index)

    async def _revive(self, index: int) -> None:
        """Restart engine `index` until it serves."""
        wait_s = RESTART_FIRST_WAIT_S
        while index in self.members:
            self.restart_count += index not in self.slots
            self.restarts[index] += index not in self.slots
            try:
                await self._start(index)
            # Any failure to start may be temporary: retry until no engine has served for the recovery timeout.
            except Exception as error:  # noqa: BLE001
                logger.warning("engine %d could not be started again, next try in %g s: %s", index, wait_s, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RESTART_MAX_WAIT_S)
            else:
                logger.info("engine %d serves again with version %d", index, self.version)
                return

    async def _start(self, index: int) -> None:
        """Start engine `index` if it is not up, and load the current weights.

        Raises:
            SyncError: the weights are not available now; the engine stays up without serving.
            TrinityError: the engine did not start, or failed; it is ended.
        """
        slot = self.slots.get(index) or await self._launch(index)
        try:
            await self._take(slot)
        except SyncError:
            raise
        except BaseException:
            await self._cast_out(slot)
            raise
        self._down_since.pop(index, None)
        self._tell()

    async def _launch(self, index: int) -> EngineSlot:
        engine = await bounded(
            self._source.start(index),
            PREPARE_TIMEOUT_S,
            what=f"engine {index} to start",
            setting="PREPARE_TIMEOUT_S",
        )
        slot = self.slots[index] = EngineSlot(index, engine)
        try:
            await self._on_start(slot)
        except BaseException:
            await self._cast_out(slot)
            raise
        return slot

    async def _cast_out(self, slot: EngineSlot) -> None:
        if self.slots.get(slot.index) is slot:
            self._drop(slot, EngineError(f"engine {slot.index} could not begin to serve", code="E5631"))
            await self._end(slot.engine)

    async def _watch(self) -> None:
        """Probe all engines at fixed intervals, without end."""
        await asyncio.sleep(self.settings.probe_first_wait_s)
        while True:
            await asyncio.gather(*(self.probe(slot) for slot in list(self.slots.values())))
            self._tell_of_those_down()
            await asyncio.sleep(self.settings.probe_interval_s)

    def _tell_of_those_down(self) -> None:
        """Log which engines are down, at most once per probe timeout."""
        now, every_s = time.monotonic(), self.settings.probe_timeout_s
        late = {index: now - since for index, since in sorted(self._down_since.items()) if now - since > every_s}
        if not late or now - self._told_at < every_s:
            return
        self._told_at = now
        limit = f"{RECOVERY_KEY} {self.settings.recovery_timeout_s:g} s"
        others = "the others answer" if self.serving() else f"requests wait, without any engine at most {limit}"
        logger.warning("%s; %s", ", ".join(f"engine {i} is away for {s:.0f} s" for i, s in late.items()), others)

    async def probe(self, slot: EngineSlot) -> None:
        """Fetch an engine's totals; an engine that fails or is late is lost."""
        limit_s = self.settings.probe_timeout_s
        try:
            slot.stats = await bounded(slot.engine.stats(), limit_s, what=f"engine {slot.index}", setting=PROBE_KEY)
        # Any failure of the probe means that the engine is lost.
        except Exception as error:  # noqa: BLE001
            self.lose(slot, EngineError(f"engine {slot.index} failed its probe: {error}", code="E5632"))

    async def _ended(self, engine: InferenceModel) -> None:
        await bounded(self._source.end(engine), END_TIMEOUT_S, what="an engine to end", setting="END_TIMEOUT_S")

    async def _end(self, engine: InferenceModel) -> None:
        """End an engine that is given up; only log a failure to end."""
        try:
            await self._ended(engine)
        except Exception as error:  # noqa: BLE001  the engine is given up already
            logger.warning("an engine that was given up did not end: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def _until(changed: asyncio.Event, seconds: float) -> None:
    """Wait for a change, at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        await within(changed.wait(), seconds)
