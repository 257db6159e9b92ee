"""Attempts under a deadline, for runners in threads and in processes.

An attempt is one try of a runner at one or several rollouts of a task; one of which no rollout completed is repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from trinity.common.workflows.task import Task
from trinity.explorer.outcome import Failed, Outcome, TimedOut
from trinity.utils.log import get_logger

logger = get_logger("explorer")

MAX_LOGGED_PER_PLACE = 3
DYNAMIC_KEY = "explorer.dynamic_timeout.ratio"


class Runner:
    """Attempts tasks one after another, each attempt under a deadline.

    Args:
        name: identifies the runner in logs, and as a participant of the engine's rounds.
        max_timeout: deadline of an attempt in seconds.
        is_waiting: whether a participant waits for the others of a deterministic round; that time is not its own, so
            its deadline is put off.
        max_wait_s: longest duration of an attempt whose deadline is put off, in seconds.
    """

    ahead_s: float = 0.0
    """Seconds before a deadline in which `foresee` is called; 0: it is not."""

    def __init__(
        self,
        name: str,
        *,
        max_timeout: float,
        is_waiting: Callable[[str], Awaitable[bool]] | None = None,
        max_wait_s: float = 0.0,
    ) -> None:
        self.name = name
        self.participant = name
        self.abandoned_count = 0
        self.restart_count = 0
        self._max_timeout = max_timeout
        self._is_waiting = is_waiting
        self._max_wait_s = max_wait_s
        self._logged: Counter[str] = Counter()
        self._doing: tuple[str, float] | None = None

    @property
    def state(self) -> str:
        """What the runner does, on which task, and for how many seconds."""
        if self._doing is None:
            return "idle"
        what, since = self._doing
        return f"{what}, {time.monotonic() - since:.1f} s"

    async def attempt(
        self, task: Task, runs: range, *, is_greedy: bool = False, timeout_s: float | None = None
    ) -> tuple[list[Outcome], float]:
        """Return the outcome of each of `runs` and the attempt's duration in s.

        Args:
            task: the task, with `batch_id` and `task_id`.
            runs: run numbers to do in one call; more than one only for a workflow that repeats itself.
            is_greedy: sample with temperature 0; the experiences are not meant for training.
            timeout_s: deadline in seconds; None: the runner's own, which is never shorter.

        Raises:
            OutOfMemoryError: the engine ran out of memory, which no other attempt can correct.
            EnginesLostError: all engines are gone and did not come back.
        """
        started = time.monotonic()
        deadline_s = self._max_timeout if timeout_s is None else timeout_s
        attempt = asyncio.ensure_future(self.perform(task, runs, is_greedy=is_greedy))
        self._doing = called(task, runs), started
        try:
            await self._until(attempt, deadline_s)
            while not attempt.done() and await self._is_put_off(started):
                await self._until(attempt, deadline_s)
        finally:
            self._doing = None
            is_late = not attempt.done()
            if is_late:
                attempt.cancel()
                self.abandon(is_overdue=time.monotonic() - started >= deadline_s)
        seconds = time.monotonic() - started
        if is_late:
            place = f"{task.workflow.__name__} timed out"
            self._log(place, f"{place} on {called(task, runs)}: no result within {deadline_s:g} s")
            is_dynamic = deadline_s < self._max_timeout
            outcome = TimedOut(deadline_s, DYNAMIC_KEY) if is_dynamic else TimedOut(deadline_s)
            return [outcome] * len(runs), seconds
        if attempt.cancelled():
            return [Failed(f"{task.workflow.__name__} cancelled its own task")] * len(runs), seconds
        return attempt.result(), seconds

    async def _until(self, attempt: asyncio.Future[list[Outcome]], deadline_s: float) -> None:
        """Wait for an attempt up to its deadline, and say when that comes near."""
        ahead_s = min(self.ahead_s, deadline_s)
        await asyncio.wait({attempt}, timeout=deadline_s - ahead_s)
        if ahead_s and not attempt.done():
            self.foresee()
            await asyncio.wait({attempt}, timeout=ahead_s)

    def foresee(self) -> None:
        """Begin what has to be known at the deadline, which is `ahead_s` away."""

    async def prepare(self) -> None:
        """Make ready for the first attempt."""

    async def perform(self, task: Task, runs: range, *, is_greedy: bool) -> list[Outcome]:
        """Return the outcome of each of `runs`; see `attempt`."""
        raise NotImplementedError

    def abandon(self, *, is_overdue: bool) -> None:
        """Abandon a cancelled attempt.

        `is_overdue` says that it did not end by its deadline.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let the runner end; wait for nothing."""
        raise NotImplementedError

    async def _is_put_off(self, started: float) -> bool:
        if self._is_waiting is None or time.monotonic() - started >= self._max_wait_s:
            return False
        return await self._is_waiting(self.participant)

    def start_batch(self) -> None:
        """Forget which errors were logged, so that each batch shows its own."""
        self._logged.clear()

    def _log(self, place: str, message: str, error: BaseException | None = None) -> None:
        self._logged[place] += 1
        if self._logged[place] <= MAX_LOGGED_PER_PLACE:
            last = (
                "; further failures of this batch are not shown" if self._logged[place] == MAX_LOGGED_PER_PLACE else ""
            )
            logger.warning("%s%s", message, last)
            logger.debug("traceback of the failure", exc_info=error)


def called(task: Task, runs: range) -> str:
    """Return what a message calls these rollouts."""
    numbers = f"rollout {runs.start}" if len(runs) == 1 else f"rollouts {runs.start}..{runs.stop - 1}"
    return f"task {task.task_id} of batch {task.batch_id} ({numbers}, row {_row(task.index)})"


def _row(index: Any) -> Any:
    return index.get("index", index) if isinstance(index, dict) else index
