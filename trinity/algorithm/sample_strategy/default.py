"""The strategy that takes experiences in the order of the buffer."""

from __future__ import annotations

import time
from typing import Any

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.algorithm.sample_strategy.metrics import NUM_SHOWN, shown_rows, version_metrics
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.algorithm.sample_strategy.source import ExperienceSource
from trinity.common.config.buffer import BufferConfig
from trinity.common.experience import Experience


@SAMPLE_STRATEGY.register_module("default")
@SAMPLE_STRATEGY.register_module("warmup", deprecated_for="default")
class DefaultSampleStrategy(SampleStrategy):
    """The next `batch_size` experiences of the buffer.

    Args:
        source: see `SampleStrategy`.
        batch_size: see `SampleStrategy`.
    """

    summary = "the next train_batch_size experiences of the experience buffer"

    def __init__(self, source: ExperienceSource | BufferConfig | None = None, *, batch_size: int = 0) -> None:
        super().__init__(source, batch_size=batch_size)

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]]:
        """Return the next batch and its metrics.

        The metrics are `sample/...` and `time/read_experience` (seconds).
        """
        start = time.perf_counter()
        exps = await self.source.read(self.batch_size, trained_version=step - 1)
        metrics = {"time/read_experience": time.perf_counter() - start}
        return exps, metrics | version_metrics(exps, step), shown_rows(exps[:NUM_SHOWN])
