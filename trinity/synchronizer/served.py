"""The weights that an engine serves: version number and fingerprint.

The fingerprint tells them from other weights of the same number.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from trinity.common.errors import SyncError
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.models.inference_model import InferenceModel
    from trinity.common.weights import Ticket
    from trinity.synchronizer.base import Synchronizer

logger = get_logger("synchronizer")

PULL_ATTEMPTS = 3
PULL_AGAIN_S = 0.1


class ServedWeights:
    """Keeps an engine at the newest version.

    A trainer that went back to a checkpoint gives a number a second time, to other weights: an engine that serves the
    first ones must not keep them because the number is right.

    Args:
        synchronizer: says what is newest.
        engine: takes it.
        explorer: name of the explorer that has the engine.
    """

    def __init__(self, synchronizer: Synchronizer, engine: InferenceModel, *, explorer: str) -> None:
        self.synchronizer = synchronizer
        self.engine = engine
        self.explorer = explorer
        self._fingerprint = ""
        self._times: dict[str, float] = {}

    def note_wait(self, started: float) -> None:
        """Record the wait for weights since `started`.

        `started` is a value of `time.perf_counter()`.
        """
        self._times["time/wait_weight"] = time.perf_counter() - started

    def pop_times(self) -> dict[str, float]:
        """Return what waits and hand-overs since the last call took, as metrics."""
        times, self._times = self._times, {}
        return times

    async def take(self, version: int) -> None:
        """Let the engine load `version`.

        Raises:
            SyncError: the version is not held; the engine keeps its own.
        """
        metrics = await pull_weights(self.synchronizer, self.engine, version, explorer=self.explorer)
        self._times |= metrics

    async def take_newest(self) -> None:
        """Let the engine load the newest version unless it serves it.

        The trainer may remove or replace a version in the instant before it is read, so a failure is followed by a
        look at what is newest now, `PULL_ATTEMPTS` times in all.

        Raises:
            SyncError: the newest version cannot be read; the engine keeps its own.
        """
        for attempt in range(PULL_ATTEMPTS):
            newest = version, fingerprint = await self.synchronizer.newest()
            if newest == (self.engine.model_version, self._fingerprint) or newest == (0, ""):
                return
            try:
                await self.take(version)
            except SyncError as error:
                if attempt == PULL_ATTEMPTS - 1:
                    raise
                logger.debug("version %d is no longer there: %s", version, error)
                await asyncio.sleep(PULL_AGAIN_S)
            else:
                self._fingerprint = fingerprint
                return


async def pull_weights(
    synchronizer: Synchronizer, engine: InferenceModel, version: int, *, explorer: str
) -> dict[str, float]:
    """Load `version` into `engine` and notify the synchronizer.

    Return `time/sync_weight` and the amount moved.

    Raises:
        SyncError: the weights are not held, or not those that were published; the engine keeps its version.
        DeadlineError: they did not come before `synchronizer.sync_timeout`.
    """
    start = time.perf_counter()
    ticket = await synchronizer.fetch(version, explorer=explorer)
    try:
        await engine.pull(ticket)
    finally:
        await synchronizer.release(version, explorer=explorer)
    seconds = time.perf_counter() - start
    logger.debug("engine serves version %d after %.3f s", version, seconds)
    return sync_metrics(ticket, seconds)


def sync_metrics(ticket: Ticket, seconds: float) -> dict[str, float]:
    """Return duration, bytes and throughput of a weight transfer.

    Units: seconds, bytes, and gigabytes (1e9 bytes) per second.
    """
    moved = ticket.place.get("moved_bytes", ticket.num_bytes)
    return {
        "time/sync_weight": seconds,
        "perf/sync_bytes": float(moved),
        "perf/sync_gb_per_second": ticket.num_bytes / 1e9 / max(seconds, 1e-9),
    }
