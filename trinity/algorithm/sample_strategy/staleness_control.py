"""The strategy that leaves out experiences of weights that are too old."""

from __future__ import annotations

import time
from typing import Any

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.algorithm.sample_strategy.source import ExperienceSource
from trinity.algorithm.sample_strategy.utils import NUM_SHOWN, read_recent, shown_rows, version_metrics
from trinity.common.experience import Experience
from trinity.utils.log import get_logger

logger = get_logger("trainer")


@SAMPLE_STRATEGY.register_module("staleness_control")
class StalenessControlStrategy(SampleStrategy):
    """The next `batch_size` rollouts that are not too old.

    All their experiences are at most `max_staleness` training steps old.

    Step s trains with the weights of version s - 1. An experience whose `model_version` is below
    s - 1 - `max_staleness` is dropped, and with it the others of its rollout: recorded as such in the buffer, counted
    in `sample/stale_count`, and not read again. Reading continues until the batch is full or no more can come before
    newer weights; then the batch is incomplete. An experience without a version is kept.

    Args:
        source: see `SampleStrategy`.
        batch_size: see `SampleStrategy`.
        max_staleness: oldest age in training steps, >= 0; None for any.

    Raises:
        ValueError: a negative `max_staleness`.
    """

    summary = "as default, without experiences that are more than max_staleness training steps old"
    of_rollouts = True
    ranges = {"max_staleness": "[0, inf]"}

    def __init__(self, source: ExperienceSource, *, batch_size: int, max_staleness: float | None = None) -> None:
        super().__init__(source, batch_size=batch_size)
        if max_staleness is not None and not max_staleness >= 0:
            raise ValueError(f"max_staleness must be >= 0, got {max_staleness}")
        self.max_staleness = float("inf") if max_staleness is None else max_staleness

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]]:
        """Return the next batch and its metrics.

        The metrics are those of `default`, and `sample/stale_count`: the number of experiences dropped for age.
        """
        start = time.perf_counter()
        oldest = max(step - self.max_staleness - 1, 0)
        kept, num_stale = await read_recent(self.source, self.batch_size, trained_version=step - 1, oldest=oldest)
        if num_stale and not kept:
            logger.warning(
                "training step %d: all %d experiences that came are more than %g training steps old and were dropped",
                step, num_stale, self.max_staleness,
            )  # fmt: skip
        metrics = {"time/read_experience": time.perf_counter() - start, "sample/stale_count": float(num_stale)}
        return kept, metrics | version_metrics(kept, step), shown_rows(kept[:NUM_SHOWN])
