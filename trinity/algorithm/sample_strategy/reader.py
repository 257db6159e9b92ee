"""The trainer's source in the form in which published strategies read it."""

from __future__ import annotations

from typing import Any

from trinity.algorithm.sample_strategy.source import ExperienceSource
from trinity.common.experience import Experience


class SourceReader:
    """Reads the source of a strategy; the ledger holds its position.

    Args:
        source: the trainer's experience buffer.
        batch_size: rollouts, or rows of a dataset, of a `read` without a number.

    Attributes:
        step: the training step that reads.
    """

    def __init__(self, source: ExperienceSource, *, batch_size: int) -> None:
        self._source = source
        self._batch_size = batch_size
        self.step = 0

    async def read(self, batch_size: int | None = None) -> list[Experience]:
        """Return the next experiences, all of those of a rollout.

        Args:
            batch_size: rollouts, or rows of a dataset; None: those of a training step.

        Raises:
            StopAsyncIteration: no more can come now.
        """
        wanted = self._batch_size if batch_size is None else batch_size
        found = await self._source.read(wanted, trained_version=self.step - 1)
        if not found:
            raise StopAsyncIteration
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load."""
