"""Which weights an engine serves: their number, and the fingerprint that tells them from others of that number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity.common.errors import SyncError
from trinity.synchronizer.synchronizer import pull_weights
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.models.model import InferenceModel
    from trinity.synchronizer.folder import AnySynchronizer

logger = get_logger("synchronizer")

PULL_ATTEMPTS = 3


class ServedWeights:
    """Keeps an engine at the newest version.

    A trainer that went back to a checkpoint gives a number a second time, to other weights: an engine that serves the
    first ones must not keep them because the number is right.

    Args:
        synchronizer: says what is newest.
        engine: takes it.
        explorer: name of the explorer that has the engine.
    """

    def __init__(self, synchronizer: AnySynchronizer, engine: InferenceModel, *, explorer: str) -> None:
        self.synchronizer = synchronizer
        self.engine = engine
        self.explorer = explorer
        self._fingerprint = ""

    async def take_newest(self) -> dict[str, float]:
        """Let the engine load the newest version unless it serves it; return the metrics of the hand-over, if any.

        The trainer may remove a version in the instant before it is read; then there is a newer one.

        Raises:
            SyncError: the newest version cannot be read; the engine keeps its own.
        """
        for attempt in range(PULL_ATTEMPTS):
            newest = version, fingerprint = await self.synchronizer.newest()
            if newest == (self.engine.model_version, self._fingerprint) or newest == (0, ""):
                return {}
            try:
                metrics = await pull_weights(self.synchronizer, self.engine, version, explorer=self.explorer)
            except SyncError as error:
                if attempt == PULL_ATTEMPTS - 1 or newest == await self.synchronizer.newest():
                    raise
                logger.debug("version %d has gone: %s", version, error)
            else:
                self._fingerprint = fingerprint
                return metrics
        return {}
