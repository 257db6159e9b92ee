"""Publishing on the trainer's side: live weights become a version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from trinity.synchronizer.served import sync_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from trinity.synchronizer.base import Synchronizer
    from trinity.synchronizer.transport import Transport

REQUEST_WAIT_S = 60.0  # of one wait for a request; the next one begins at once


class Publisher:
    """Puts versions into a transport and announces their tickets.

    Args:
        synchronizer: tells who waits and what may be dropped.
        transport: holds the weights, in this process.
    """

    def __init__(self, synchronizer: Synchronizer, transport: Transport) -> None:
        self.synchronizer = synchronizer
        self.transport = transport

    async def publish(self, version: int, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """Make `weights` available as `version`.

        When the explorer is already waiting for this version and no older one can be asked for again, it copies
        from the live tensors while the trainer waits; otherwise the transport keeps a copy.

        Args:
            version: number of the training step that produced the weights.
            weights: tensors by Hugging Face name; may change after this returns.

        Returns:
            `time/sync_weight` in seconds, the bytes of the weights, and the rate.

        Raises:
            SyncError: the explorer did not take the weights before the deadline.
        """
        start = time.perf_counter()
        is_live = self.transport.can_publish_live and await self.synchronizer.is_awaited(version)
        ticket = await asyncio.to_thread(self.transport.put, version, weights, copy=not is_live)
        oldest = await self.synchronizer.publish(ticket, is_live=is_live)
        if oldest is None:  # whoever waited has ended; the version must outlive the next step
            ticket = await asyncio.to_thread(self.transport.put, version, weights, copy=True)
            oldest = await self.synchronizer.publish(ticket)
        await asyncio.to_thread(self.transport.drop_before, oldest or 0)
        return sync_metrics(ticket, time.perf_counter() - start)

    async def publish_on_request(
        self, lock: asyncio.Lock, *, step: Callable[[], int], weights: Callable[[], Awaitable[Mapping[str, Tensor]]]
    ) -> None:
        """Publish between training steps whenever an explorer requests it.

        Runs until it is cancelled.

        Args:
            lock: held while a training step changes the weights.
            step: gives the last training step.
            weights: gives the present tensors.

        Raises:
            SyncError: a version could not be published.
        """
        while True:
            if await self.synchronizer.wait_for_request(timeout_s=REQUEST_WAIT_S):
                async with lock:
                    if step() > await self.synchronizer.newest_version():
                        await self.publish(step(), await weights())
                    await self.synchronizer.acknowledge()

    async def served_weights(self, training_step: int) -> dict[int, Mapping[str, Tensor]]:
        """Return published weights that an explorer may still request.

        Those of `training_step` are left out.
        """
        versions = await self.synchronizer.needed_versions(training_step)
        return {version: await asyncio.to_thread(self.transport.get, version) for version in versions}

    async def restore(
        self,
        version: int,
        explorer_state: dict[str, Any] | None,
        *,
        explorer: str,
        weights: Mapping[int, Mapping[str, Tensor]],
    ) -> None:
        """Continue from a checkpoint.

        Args:
            version: newest published version at the checkpoint.
            explorer_state: the explorer's snapshot in it.
            explorer: its name.
            weights: tensors of every version that the explorer can still ask for.
        """
        tickets = [await asyncio.to_thread(self.transport.put, v, weights[v], copy=True) for v in sorted(weights)]
        await self.synchronizer.restore(version, explorer_state, tickets=tickets, explorer=explorer)
