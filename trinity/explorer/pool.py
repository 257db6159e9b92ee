"""The runners of a scheduler, each of which works for one batch at a time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from trinity.explorer.attempts import Runner


class RunnerPool:
    """Hands out idle runners; the oldest waiting batch goes first.

    Args:
        runners: all of them.
    """

    def __init__(self, runners: Iterable[Runner]) -> None:
        self._idle = list(reversed(list(runners)))
        self._waiting: list[tuple[int, int, asyncio.Future[Runner]]] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def acquired(self, batch: int) -> AsyncIterator[Runner]:
        """Return a runner for one part of batch number `batch`.

        The attempts of other parts bound the wait.
        """
        runner = self._idle.pop() if self._idle else await self._wait(batch)
        try:
            yield runner
        finally:
            self._give_back(runner)

    async def _wait(self, batch: int) -> Runner:
        future: asyncio.Future[Runner] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (batch, next(self._numbers), future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back(future.result())
            raise

    def _give_back(self, runner: Runner) -> None:
        while self._waiting:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(runner)
                return
        self._idle.append(runner)
