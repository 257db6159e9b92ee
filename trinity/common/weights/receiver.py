"""The engine's side of a transfer: from a ticket to verified tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from trinity.common.errors import SyncError
from trinity.common.weights.collective import receive_broadcast
from trinity.common.weights.files import read_version
from trinity.common.weights.ticket import Ticket, matches
from trinity.utils.deadline import bounded


class Updatable(Protocol):
    """The part of an engine that a weight update uses."""

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy `weights` into the engine and set its version."""


def _from_memory(ticket: Ticket, timeout_s: float) -> Mapping[str, Tensor]:
    tensors: Mapping[str, Tensor] = ticket.place["ref"].load()
    return tensors


def _from_files(ticket: Ticket, timeout_s: float) -> Mapping[str, Tensor]:
    return read_version(ticket)


_RECEIVERS: dict[str, Callable[[Ticket, float], Mapping[str, Tensor]]] = {
    "memory": _from_memory,
    "checkpoint": _from_files,
    "nccl": receive_broadcast,
}


def receive(ticket: Ticket, *, timeout_s: float) -> Mapping[str, Tensor]:
    """Return the weights of a ticket by Hugging Face name; blocks.

    All tensors are present and verified before this returns, so an engine never holds part of a version. Within one
    process they are the published tensors themselves: copy them and do not change them.

    Args:
        ticket: ticket of the version.
        timeout_s: longest wait for the trainer in seconds (`synchronizer.sync_timeout`).

    Raises:
        SyncError: the weights are no longer held (E5502, E5704), or differ from what was published (E5503); the
            transport is unknown (E5504).
    """
    if ticket.method not in _RECEIVERS:
        known = ", ".join(sorted(_RECEIVERS))
        raise SyncError(f"no transport is called {ticket.method!r}; known: {known}", code="E5504")
    weights = _RECEIVERS[ticket.method](ticket, timeout_s)
    if not matches(ticket, weights):
        raise SyncError(
            f"the weights of version {ticket.version} that came by {ticket.method} are not those that the trainer "
            "published: their fingerprint differs; the engine keeps its version. Look for a disk or memory that "
            "loses data, or for two runs that write into one job folder",
            code="E5503",
        )
    return weights


async def update_from(ticket: Ticket, engine: Updatable, *, timeout_s: float) -> None:
    """Receive the weights of a ticket and load them into a local engine.

    Raises:
        SyncError: see `receive`; the engine keeps its version.
        DeadlineError: they did not arrive within `timeout_s`.
    """
    weights = await bounded(
        asyncio.to_thread(receive, ticket, timeout_s=timeout_s),
        timeout_s,
        what=f"the weights of version {ticket.version} by {ticket.method}",
        setting="synchronizer.sync_timeout",
    )
    await engine.update_weights(weights, version=ticket.version)
