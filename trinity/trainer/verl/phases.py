"""How long the phases of a training step take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trinity.utils.device import synchronize


class Phases:
    """Adds up the seconds of each phase of a step.

    Args:
        device: a phase ends when the work that it queued on the device is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the phase `name`."""
        start = time.perf_counter()
        yield
        synchronize(self._device)
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Return `time/<phase>` of all phases, and start again from zero."""
        found, self._seconds = self._seconds, {}
        return {f"time/{name}": seconds for name, seconds in found.items()}
