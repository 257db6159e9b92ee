"""The result of the training loop; importing it needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainSummary:
    """Result of the training loop.

    Attributes:
        step: last training step.
        checkpoint: the newest checkpoint, or None if none was written.
        is_stopped: ended by `request_stop`.
        metrics: of the last step.
    """

    step: int
    checkpoint: Path | None
    is_stopped: bool
    metrics: Mapping[str, float]
