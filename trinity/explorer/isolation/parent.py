"""A runner whose attempts run in another process: the explorer's side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from trinity.common.errors import EnginesLostError, OutOfMemoryError, WorkflowError
from trinity.common.workflows.task import Task
from trinity.explorer.attempts import Runner, called
from trinity.explorer.isolation.memory import OVER
from trinity.explorer.isolation.place import RunnerPlace
from trinity.explorer.isolation.shared import SIGN_OF_LIFE_S, SharedProcess
from trinity.explorer.outcome import Failed, Outcome, OverMemory
from trinity.runtime.base import ActorDiedError
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.explorer.advantage_inputs import InputCompleter

logger = get_logger("explorer")

LATE_PATIENCE = 0.75
"""Share of `SIGN_OF_LIFE_S` for the sign at the deadline: what is left of it is for the kill."""


class _CompanyError(Exception):
    """A shared process ended, and which attempt caused it is unknown."""


class ProcessRunner(Runner):
    """Attempts tasks in a process that it may share with others.

    An attempt that does not end by its deadline retires the process: it takes no new attempt, the others in it
    continue, and it is killed when they are done. If an attempt blocks a shared process, so that it gives no sign of
    life, the process is killed: at the deadline if it was blocked for the second before, else within a second after.
    When a shared process is gone, each attempt in it is repeated in a process of its own, which shows whose fault it
    was; this repetition does not count as a retry. A runner returns to the shared process after an attempt that ended
    by itself.

    Args:
        name: see `Runner`.
        place: where the processes are.
        completer: adds to the experiences of a run what the advantage function asks for.
        deadlines: further arguments of `Runner`.
    """

    ahead_s = SIGN_OF_LIFE_S

    def __init__(
        self,
        name: str,
        place: RunnerPlace,
        *,
        max_timeout: float,
        is_waiting: Callable[[str], Awaitable[bool]] | None = None,
        max_wait_s: float = 0.0,
        completer: InputCompleter | None = None,
    ) -> None:
        super().__init__(name, max_timeout=max_timeout, is_waiting=is_waiting, max_wait_s=max_wait_s)
        self._place = place
        self._completer = completer
        self._slot = place.assign()
        self._own: SharedProcess | None = None
        self._process = place.process(self._slot)
        self._sign: asyncio.Task[bool] | None = None

    async def prepare(self) -> None:
        """Start the process; does nothing while there is one.

        Raises:
            WorkflowError: it did not start (E5634).
        """
        self._process = self._own or self._place.process(self._slot)
        await self._process.ready()

    async def attempt(
        self, task: Task, runs: range, *, is_greedy: bool = False, timeout_s: float | None = None
    ) -> tuple[list[Outcome], float]:
        """Return the outcome of each of `runs` and the duration in seconds.

        The start of a process is not counted.
        """
        for _ in range(2):
            try:
                await self.prepare()
            except WorkflowError as error:
                self._log("start", str(error))
                return [Failed(str(error))] * len(runs), 0.0
            try:
                return await super().attempt(task, runs, is_greedy=is_greedy, timeout_s=timeout_s)
            except _CompanyError as error:
                logger.warning("%s of %s is repeated in a process of its own: %s", called(task, runs), self.name, error)
                self._own = self._place.alone()
        raise AssertionError("a process of one runner has no company")

    async def perform(self, task: Task, runs: range, *, is_greedy: bool) -> list[Outcome]:
        """Return the outcome of each of `runs`: `Failed` where the process ended."""
        try:
            outcomes = await self._process.perform(
                self.name, task, runs, participant=self.participant, is_greedy=is_greedy
            )
        except ActorDiedError as error:
            self.restart_count += self._place.retire(self._process)
            if self._process.is_shared:
                raise _CompanyError(str(error)) from error
            self._log("died", f"{task.workflow.__name__} ended its process on {called(task, runs)}: {error}")
            self._own = None if self._own is None else self._place.alone()
            kind = OverMemory if OVER in str(error) else Failed
            return [kind(str(error))] * len(runs)
        except (EnginesLostError, OutOfMemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a workflow's result or class that cannot travel is its failure
            message = f"{type(error).__name__}: {error}"
            self._log("travel", f"{task.workflow.__name__} on {called(task, runs)}: {message}", error)
            return [Failed(message)] * len(runs)
        self._come_back()
        if self._completer is None or task.is_eval or is_greedy:
            return outcomes
        return [await self._completer.complete(outcome, task) for outcome in outcomes]

    def abandon(self, *, is_overdue: bool) -> None:
        """Abandon an attempt.

        A late attempt retires its process, whatever it does. Otherwise only its thread in the process is left behind.
        """
        if self._process.is_killed:
            return  # and the attempt with it
        self.abandoned_count += 1
        self.participant = f"{self.name}+{self.abandoned_count}"
        if is_overdue:
            self.restart_count += self._place.retire(self._process)
            self._own = None if self._own is None else self._place.alone()

    def close(self) -> None:
        """Do nothing: the processes end with their place."""

    async def _is_put_off(self, started: float) -> bool:
        if await super()._is_put_off(started):
            return True
        if self._process.is_shared and not await self._gives_sign():
            self.restart_count += await self._place.lose(self._process)
            return True  # `perform` hears of it at once
        return False

    def foresee(self) -> None:
        """Ask a shared process for a sign of life."""
        self._sign = asyncio.ensure_future(self._process.is_alive()) if self._process.is_shared else None

    async def _gives_sign(self) -> bool:
        sign, self._sign = self._sign, None
        # The early sign decides at the deadline; what begins to hold the process after it is found by the second one.
        return (sign is None or await sign) and await self._process.is_alive(patience=LATE_PATIENCE)

    def _come_back(self) -> None:
        if self._own is not None:
            self._place.retire(self._own)
            self._own = None
