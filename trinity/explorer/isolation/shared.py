"""A process shared by runners, on the parent's side.

The parent starts it, serves its engine calls, retires it and ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from trinity.common.config import Config
from trinity.common.workflows.task import Task
from trinity.explorer.outcome import Outcome
from trinity.runtime.base import ActorDiedError, Handle
from trinity.runtime.batched import COLLECT_TIMEOUT_S, BatchedCalls, BatchedHost, Call
from trinity.utils.deadline import bounded, within
from trinity.utils.log import get_logger

logger = get_logger("explorer")

GRACE_S = 30.0
SIGN_OF_LIFE_S = 1.0
"""Longest wait in seconds for a sign of life of a process with a late attempt, so that others continue in it."""


class Place(Protocol):
    """What a process of runners asks of the place that has it."""

    config: Config

    @property
    def versions(self) -> list[int]:
        """Versions of the weights that the engines serve."""

    async def start(self, name: str) -> Handle:
        """Return the process of runners called `name`, ready for work."""

    async def lose(self, process: SharedProcess) -> bool:
        """Kill a process and its attempts; return False if it was retired."""

    def forget(self, process: SharedProcess) -> None:
        """Leave out of `close` a process that has ended."""


class SharedProcess:
    """A process of runners.

    Args:
        name: of the process.
        place: how it is started, and the engines that it calls.
    """

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self.is_retired = False
        self.is_killed = False
        self._place = place
        self._users: set[str] = set()
        self._under_way = 0
        self._starting: asyncio.Task[Handle] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._attempts: BatchedCalls | None = None
        self._engines = BatchedHost(place, "the engines")

    # --------------------------------------------------------------------- life
    async def ready(self) -> Handle:
        """Return the process; start it if there is none or its start failed.

        Raises:
            WorkflowError: it did not start (E5634).
        """
        # `RunnerPlace.start` has the deadlines; others may wait for the same start.
        return await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[Handle]:
        """Start the process if there is none or its start failed.

        This does not wait for the start.
        """
        if self._starting is None or (self._starting.done() and self._started is None):
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._starting

    async def _start(self) -> Handle:
        handle = await self._place.start(self.name)
        self._attempts = BatchedCalls(handle)
        self._serving = asyncio.ensure_future(self._serve(handle))
        return handle

    @property
    def _started(self) -> Handle | None:
        starting = self._starting
        if starting is None or not starting.done() or starting.cancelled() or starting.exception() is not None:
            return None
        return starting.result()

    def retire(self) -> None:
        """Accept no new attempt; kill the process after its last attempt."""
        self.is_retired = True
        if not self._under_way and self._ending is None:
            self._ending = asyncio.ensure_future(self.kill())

    async def kill(self) -> None:
        """Kill the process at once.

        Attempts under way fail with `ActorDiedError`.
        """
        self.is_retired = self.is_killed = True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        self._engines.close()
        if self._started is not None:
            await self._started.kill()
        self._place.forget(self)

    def close(self) -> None:
        """Let the process end; wait for nothing."""
        self.is_retired = True
        if self._started is not None:
            self._started.let_go()
        for task in (self._starting, self._ending, self._serving):
            if task is not None:
                task.cancel()
        if self._attempts is not None:
            self._attempts.close()

    @property
    def is_shared(self) -> bool:
        """Whether more than one runner has worked in it."""
        return len(self._users) > 1

    @property
    def is_lost(self) -> bool:
        """Whether it was retired, or started and ended since."""
        return self.is_retired or (self._serving is not None and self._serving.done())

    async def is_alive(self, *, patience: float = 1.0) -> bool:
        """Return whether the process says so at once.

        Args:
            patience: how long it may take, as a multiple of `SIGN_OF_LIFE_S`.
        """
        handle = await self.ready()
        try:
            return bool(await within(handle.is_alive(), patience * SIGN_OF_LIFE_S))
        except (TimeoutError, ActorDiedError):
            return False

    # ----------------------------------------------------------------- attempts
    async def perform(
        self, runner_name: str, task: Task, runs: range, *, participant: str, is_greedy: bool
    ) -> list[Outcome]:
        """Return the outcome of each of `runs`.

        Raises:
            ActorDiedError: the process is gone (E5701).
        """
        await self.ready()
        assert self._attempts is not None, "it is there when the process is"
        self._users.add(runner_name)
        self._under_way += 1
        try:
            outcomes: list[Outcome] = await self._attempts.call(
                "perform",
                runner_name,
                task,
                runs,
                participant=participant,
                is_greedy=is_greedy,
                versions=self._place.versions,
            )
            return outcomes
        finally:
            self._under_way -= 1
            if self.is_retired:
                self.retire()

    # ------------------------------------------------------------- engine calls
    async def _serve(self, handle: Handle) -> None:
        """Serve the engine calls of the process until it ends."""
        fetching = asyncio.ensure_future(self._fetch(handle))
        bringing = asyncio.ensure_future(self._bring(handle))
        try:
            await asyncio.wait((fetching, bringing), return_when=asyncio.FIRST_COMPLETED)
            ended = fetching if fetching.done() else bringing
            error = ended.exception()
        finally:
            fetching.cancel()
            bringing.cancel()
            self._engines.close()
        if not isinstance(error, ActorDiedError):  # otherwise its attempts fail by themselves, with the cause
            logger.warning("%s does not answer: %s", self.name, error)
            await self._place.lose(self)

    async def _fetch(self, handle: Handle) -> None:
        while True:
            calls: Sequence[Call] = await bounded(
                handle.fetch(COLLECT_TIMEOUT_S),
                COLLECT_TIMEOUT_S + self._grace_s,
                what=f"{self.name} to say what it asks of the engines",
                setting="explorer.max_timeout",
            )
            await self._engines.post(self.name, calls)

    async def _bring(self, handle: Handle) -> None:
        while True:
            if results := await self._engines.collect(self.name, COLLECT_TIMEOUT_S):
                await bounded(
                    handle.answer(results),
                    self._grace_s,
                    what=f"{self.name} to take the engines' answers",
                    setting="explorer.max_timeout",
                )

    @property
    def _grace_s(self) -> float:
        return GRACE_S + self._place.config.explorer.max_timeout
