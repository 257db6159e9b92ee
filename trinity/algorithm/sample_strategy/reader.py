"""The trainer's source in the form in which published strategies read it."""

from __future__ import annotations

from typing import Any

from trinity.algorithm.sample_strategy.source import ExperienceSource
from trinity.algorithm.sample_strategy.utils import read_recent
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

    async def read(self, batch_size: int | None = None, *, min_model_version: int = 0) -> list[Experience]:
        """Return the next experiences, all of those of a rollout.

        Args:
            batch_size: rollouts, or rows of a dataset; None: those of a training step.
            min_model_version: rollouts of older weights are dropped, and recorded as such.

        Raises:
            StopAsyncIteration: no more can come now.
        """
        wanted = self._batch_size if batch_size is None else batch_size
        trained = self.step - 1
        if min_model_version > 0:
            found, _ = await read_recent(self._source, wanted, trained_version=trained, oldest=min_model_version)
        else:
            found = await self._source.read(wanted, trained_version=trained)
        if not found:
            raise StopAsyncIteration
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load."""
