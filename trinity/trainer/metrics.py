"""Metrics of a training batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trinity.trainer.batch import TrainBatch


def spread_metrics(name: str, values: Tensor) -> dict[str, float]:
    """Return `<name>/{mean,max,min}` over the finite entries of `values`.

    `values` has any shape. The result is empty if no entry is finite.
    """
    finite = values[torch.isfinite(values)].double()
    if not finite.numel():
        return {}
    return {
        f"{name}/mean": float(finite.mean()),
        f"{name}/max": float(finite.max()),
        f"{name}/min": float(finite.min()),
    }


def batch_metrics(batch: TrainBatch, truncated: Sequence[bool]) -> dict[str, float]:
    """Return reward, advantage, value and length metrics of a batch.

    Args:
        batch: the rows.
        truncated: whether the response of each experience was cut at the length limit.
    """
    lengths = (batch.lengths - batch.prompt_lengths).float()
    metrics = spread_metrics("response_length", lengths)
    metrics["response_length/clip_ratio"] = sum(truncated) / len(truncated)
    metrics |= spread_metrics("prompt_length", batch.prompt_lengths.float())
    metrics |= spread_metrics("global_seqlen", batch.lengths.float())
    metrics |= spread_metrics("critic/score", batch.rewards)
    metrics |= spread_metrics("critic/rewards", batch.rewards)
    counted = batch.action_mask
    if "expert_mask" in batch.values:
        counted = counted & ~batch.values["expert_mask"][:, None]  # expert rows have no such values
    for name in ("advantages", "returns", "values"):
        if name in batch.columns:
            metrics |= spread_metrics(f"critic/{name}", batch.columns[name][counted])
    return metrics


def speed_metrics(num_tokens: int, seconds: float, peak_bytes: int) -> dict[str, float]:
    """Return `perf/...`: tokens, seconds, tokens per second, peak GiB (CUDA)."""
    metrics = {
        "perf/total_num_tokens": float(num_tokens),
        "perf/time_per_step": seconds,
        "perf/throughput": num_tokens / max(seconds, 1e-9),
    }
    if peak_bytes:
        metrics["perf/max_memory_allocated_gb"] = peak_bytes / 2**30
    return metrics
