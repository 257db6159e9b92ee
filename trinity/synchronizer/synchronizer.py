"""The meeting point of explorer and trainer: versions, weights, and the explorer's last finished step.

Every method is awaited, so that the synchronizer can live in this process or behind a handle. It holds no
model: the explorer fetches the weights of a version and gives them to its engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trinity.common.errors import SyncError
from trinity.synchronizer.schedule import FixedSchedule
from trinity.synchronizer.transport import Transport
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from torch import Tensor

    from trinity.common.models.model import InferenceModel

logger = get_logger("synchronizer")


class Synchronizer:
    """Carries versions from the trainer to the explorer under the fixed schedule.

    Args:
        schedule: which version serves which explore step.
        transport: where published weights are held.
        timeout_s: longest wait for a version or for the explorer to take one (`synchronizer.sync_timeout`).
    """

    def __init__(self, schedule: FixedSchedule, transport: Transport, *, timeout_s: float) -> None:
        self.schedule = schedule
        self.transport = transport
        self.timeout_s = timeout_s
        self._version = 0
        self._awaited: int | None = None
        self._borrowed: int | None = None
        self._explorer_state: dict[str, Any] | None = None
        self._trainer_done = False
        self._explorer_done = False
        self._changed = asyncio.Condition()

    # ------------------------------------------------------------------ trainer
    async def publish(self, version: int, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """Make `weights` available as `version`.

        When the explorer is already waiting for this version and no older one can be asked for again, it copies
        from the live tensors while the trainer waits; otherwise the transport keeps a copy.

        Args:
            version: number of the training step that produced the weights.
            weights: tensors by Hugging Face name; may change after this returns.

        Returns:
            `time/sync_weight` in seconds.

        Raises:
            SyncError: the explorer did not take the weights before the deadline.
        """
        start = time.perf_counter()
        async with self._changed:
            lend = self._awaited is not None and self._awaited <= version and not self.schedule.keeps_history
            await asyncio.to_thread(self.transport.put, version, weights, copy=not lend)
            self._version = max(self._version, version)
            self._borrowed = version if lend else None
            self.transport.drop_before(self._oldest_needed())
            self._changed.notify_all()
            if lend:
                await self._until(lambda: self._borrowed is None, f"the explorer to load version {version}")
                self.transport.drop_before(version + 1)
        return {"time/sync_weight": time.perf_counter() - start}

    async def finish_trainer(self) -> None:
        """Say that no further version will come."""
        async with self._changed:
            self._trainer_done = True
            self._changed.notify_all()

    async def explorer_state(self) -> dict[str, Any] | None:
        """Return the explorer's snapshot after its last finished step, for a checkpoint."""
        return self._explorer_state

    async def served_weights(self, training_step: int) -> dict[int, Mapping[str, Tensor]]:
        """Return the published weights that the explorer can still ask for and that are not those of `training_step`.

        Empty where the checkpoint's own weights, or the initial model, serve all that comes.
        """
        oldest = self._oldest_needed()
        return {v: self.transport.get(v) for v in self.transport.versions() if oldest <= v < training_step}

    # ----------------------------------------------------------------- explorer
    async def wait_for_version(self, version: int, *, timeout_s: float | None = None) -> int:
        """Wait until `version` or a newer one is published, or the trainer has finished; return the newest.

        Raises:
            SyncError: neither happened before the deadline (`synchronizer.sync_timeout`).
        """
        async with self._changed:
            self._awaited = version
            self._changed.notify_all()
            try:
                await self._until(
                    lambda: self._version >= version or self._trainer_done,
                    f"version {version} (the trainer's newest is {self._version})",
                    timeout_s=timeout_s,
                )
            finally:  # also when this wait is cancelled: nobody would take weights lent to it
                self._awaited = None
            return self._version

    async def wait_for_trainer(self, *, timeout_s: float | None = None) -> int:
        """Wait until the trainer has finished, however many versions it still publishes; return the last one.

        Raises:
            SyncError: a version took longer than the deadline.
        """
        async with self._changed:
            while not self._trainer_done:
                await self._until(self._is_newer_than(self._version), "the trainer to finish", timeout_s=timeout_s)
            return self._version

    async def fetch(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`; call `release` when they have been copied."""
        return await asyncio.to_thread(self.transport.get, version)

    async def release(self, version: int) -> None:
        """Say that the engine holds its own copy of `version`."""
        async with self._changed:
            self._borrowed = None
            self._changed.notify_all()

    async def report_explorer(self, state: dict[str, Any]) -> None:
        """Keep the explorer's snapshot (JSON-able, with key `explore_step`) after a finished step."""
        async with self._changed:
            self._explorer_state = state
            self.transport.drop_before(self._oldest_needed())

    async def finish_explorer(self) -> None:
        """Say that the explorer will ask for no further version."""
        async with self._changed:
            self._explorer_done = True
            self._borrowed = None
            self._changed.notify_all()

    # ------------------------------------------------------------------- either
    async def restore(
        self, version: int, explorer_state: dict[str, Any] | None, *, weights: Mapping[int, Mapping[str, Tensor]]
    ) -> None:
        """Continue from a checkpoint.

        Args:
            version: newest published version at the checkpoint.
            explorer_state: the explorer's snapshot in it.
            weights: tensors of every version that the explorer can still ask for.
        """
        self._version = version
        self._explorer_state = explorer_state
        for held, tensors in weights.items():
            await asyncio.to_thread(self.transport.put, held, tensors, copy=True)

    async def newest_version(self) -> int:
        """Return the newest published version; 0 is the initial model."""
        return self._version

    async def is_trainer_finished(self) -> bool:
        """Return whether the trainer will publish no further version."""
        return self._trainer_done

    async def is_explorer_finished(self) -> bool:
        """Return whether the explorer will ask for no further version."""
        return self._explorer_done

    def _is_newer_than(self, version: int) -> Callable[[], bool]:
        return lambda: self._trainer_done or self._version > version

    def _next_version(self) -> int:
        done = self._explorer_state["explore_step"] if self._explorer_state else 0
        return min(self.schedule.version_for(done + 1), self._version)

    def _oldest_needed(self) -> int:
        return min(self._next_version(), self._version)

    async def _until(self, condition: Callable[[], bool], what: str, *, timeout_s: float | None = None) -> None:
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            await asyncio.wait_for(self._changed.wait_for(condition), limit)
        except TimeoutError as error:
            raise SyncError(
                f"timed out after {limit:g} s waiting for {what}; "
                "raise synchronizer.sync_timeout if a step takes longer",
                code="E5501",
            ) from error


async def pull_weights(synchronizer: Synchronizer, engine: InferenceModel, version: int) -> float:
    """Load `version` into `engine` and tell the synchronizer; return the seconds it took."""
    start = time.perf_counter()
    weights = await synchronizer.fetch(version)
    try:
        await engine.update_weights(weights, version=version)
    finally:
        await synchronizer.release(version)
    seconds = time.perf_counter() - start
    logger.debug("engine serves version %d after %.3f s", version, seconds)
    return seconds
