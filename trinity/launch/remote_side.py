"""A side in another process, and how it reports to this one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from trinity.common.errors import TrinityError
from trinity.launch.side import MetricsListener, R, RolloutsListener, ServedAt
from trinity.monitor import headline
from trinity.runtime.base import ActorDiedError, Handle
from trinity.utils.deadline import within

if TYPE_CHECKING:
    from trinity.buffer.store.types import Fates
    from trinity.synchronizer.base import Synchronizer

METRICS_WAIT_S = 1.0
ROLLOUTS_WAIT_S = 5.0
CLOSE_S = 60.0


class RemoteSide(Generic[R]):
    """A side in another process, as the stage sees it.

    Args:
        handle: of the side.
        on_metrics: called with actor name, step and values of every logged line.
        lost: set when the way to the process is lost.
        on_rollouts: called now and then with the newest rollouts, or why there are none.
    """

    def __init__(
        self,
        handle: Handle,
        on_metrics: MetricsListener | None,
        lost: threading.Event,
        *,
        on_rollouts: RolloutsListener | None = None,
    ) -> None:
        self._handle = handle
        self._on_metrics = on_metrics
        self._on_rollouts = on_rollouts
        self._looked = float("-inf")
        self._lost = lost

    async def facts(self) -> dict[str, Any]:
        """Return what decides float results in the side's process."""
        return dict(await self._handle.facts())

    async def prepare(
        self,
        synchronizer: Synchronizer | None = None,
        *,
        resume: Path | None = None,
        explore_steps: int | None = None,
    ) -> int | None:
        """Prepare the side; see `StageSide`."""
        planned: int | None = await self._handle.prepare(synchronizer, resume=resume, explore_steps=explore_steps)
        return planned

    async def run(self) -> R:
        """Run the side to its end; return what it did."""
        showing = asyncio.ensure_future(self._show())
        try:
            result: R = await self._handle.run()
            return result
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            with contextlib.suppress(Exception):  # the side may be gone, and its last lines with it
                await within(self._take(), METRICS_WAIT_S)

    async def untrained(self) -> tuple[int, int]:
        """Return how many experiences are not trained, and of how many."""
        left, total = await self._handle.untrained()
        return left, total

    async def fates(self) -> Fates | None:
        """Return what happened to the rollouts; None: it has no store."""
        found: Fates | None = await self._handle.fates()
        return found

    async def served(self) -> ServedAt | None:
        """Return where callers are answered; None: nowhere."""
        found: ServedAt | None = await self._handle.served()
        return found

    async def request_stop(self) -> None:
        """Let the side end early."""
        await self._handle.request_stop()

    async def close(self) -> None:
        """Close the side; a side that is gone is closed."""
        if self._lost.is_set():
            return
        with contextlib.suppress(ActorDiedError):
            await within(self._handle.close(), CLOSE_S)

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(METRICS_WAIT_S)
            await self._take()

    async def _take(self) -> None:
        if self._on_metrics is None:
            return
        lines = await self._handle.metrics()
        for actor, step, values in lines:
            self._on_metrics(actor, step, values)
        if any(headline.reward(values) is not None for _, _, values in lines):
            await self._look()

    async def _look(self) -> None:
        """Hand over the newest rollouts, unless that was done lately."""
        now = time.monotonic()
        if self._on_rollouts is None or now - self._looked < ROLLOUTS_WAIT_S:
            return
        self._looked = now
        try:
            self._on_rollouts(await self._handle.rollouts(), "")
        except (TrinityError, OSError) as error:
            self._on_rollouts([], str(error))
