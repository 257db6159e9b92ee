"""What the training loop asks of a back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from trinity.common.experience import Experience


@runtime_checkable
class TrainerBackend(Protocol):
    """Holds the model and the optimizer; every method blocks and is called from one thread at a time."""

    def train_step(self, experiences: Sequence[Experience], step: int) -> dict[str, float]:
        """Train on `experiences` as step `step` (1-based); return metrics.

        Raises:
            OutOfMemoryError: with the memory table and the keys to change.
            NumericError: gradients were not finite in several steps in a row.
            DataError: an experience cannot be trained on.
        """
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Return the live weights by Hugging Face name; the next step changes them."""
        ...

    def save(self, folder: Path, *, hf: bool) -> None:
        """Write the back end's part of a checkpoint into `folder`; with `hf` also the weights as safetensors."""
        ...

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote.

        Raises:
            CheckpointError: it does not fit the model or the configuration.
        """
        ...

    def memory_table(self) -> dict[str, int]:
        """Return bytes by what holds them."""
        ...
