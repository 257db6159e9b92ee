"""The strategy that takes experiences in the order of the buffer."""

from __future__ import annotations

import time
from typing import Any

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.common.experience import Experience

NUM_SHOWN = 3


@SAMPLE_STRATEGY.register_module("default")
@SAMPLE_STRATEGY.register_module("warmup", deprecated_for="default")
class DefaultSampleStrategy(SampleStrategy):
    """The next `batch_size` experiences of the buffer."""

    summary = "the next train_batch_size experiences of the experience buffer"

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]]:
        """Return the next batch and its metrics.

        The metrics are `sample/...` and `time/read_experience` (seconds).
        """
        start = time.perf_counter()
        exps = await self.source.read(self.batch_size, trained_version=step - 1)
        metrics = {"time/read_experience": time.perf_counter() - start}
        return exps, metrics | version_metrics(exps, step), shown_rows(exps[:NUM_SHOWN])


def version_metrics(exps: list[Experience], step: int) -> dict[str, float]:
    """Return metrics of model versions, staleness, tasks and rollouts.

    They are `sample/model_version/...`, `sample/staleness/...` (training steps) and the numbers of tasks and rollouts.
    Training step s changes the weights of version s - 1, so that staleness is s - 1 - version. The published
    `sample/model_version_drift/...` is s - version, one more.
    """
    if not exps:
        return {}
    metrics = {"sample/task_count": float(len({exp.eid.tid for exp in exps}))}
    metrics["sample/rollout_count"] = float(len({exp.eid.rid for exp in exps}))
    versions = [float(exp.info["model_version"]) for exp in exps if exp.info.get("model_version") is not None]
    if not versions:
        return metrics
    metrics["sample/mixed_version_count"] = float(sum("model_versions" in exp.info for exp in exps))
    series = {
        "model_version": versions,
        "model_version_drift": [step - version for version in versions],
        "staleness": [step - 1 - version for version in versions],
    }
    for name, values in series.items():
        metrics[f"sample/{name}/mean"] = sum(values) / len(values)
        metrics[f"sample/{name}/max"] = max(values)
        metrics[f"sample/{name}/min"] = min(values)
    return metrics


def shown_rows(exps: list[Experience]) -> list[dict[str, Any]]:
    """Return prompt, response and reward of `exps` for a table of examples."""
    return [
        {"id": exp.eid.uid, "prompt": exp.prompt_text, "response": exp.response_text, "reward": exp.reward}
        for exp in exps
    ]
