"""Correction for the gap between sampling policy and trained policy.

Dimension key: B = responses, T = response positions. rho = exp(old_logprob - rollout_logprob) per token: the policy
before the update, recomputed by the trainer, over the policy that sampled. Truncated weights are those of Ionides,
"Truncated Importance Sampling" (2008), zero outside a band those of IcePop (arXiv:2510.18855v2, eq. 1 and 2). Options
and thresholds are veRL's; where every weight is outside the band all are 0 (veRL 0.9.1 raises an error there).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.aggregation import counted, masked_mean, masked_sum
from trinity.algorithm.log_ratio import bounded
from trinity.algorithm.mismatch import mismatch_metrics, weight_metrics
from trinity.utils.correction_options import LEVELS, Threshold, band, rejection_bounds

MIN_MEAN_WEIGHT = 1e-8
ESTIMATES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: 0.5 * log_ratio.square(),
    "k3": lambda log_ratio: log_ratio.exp() - 1.0 - log_ratio,
}


def compute_rollout_correction(
    old_logprob: Float[Tensor, "B T"],
    rollout_logprob: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    rollout_is: str | None = None,
    rollout_is_threshold: Threshold = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: Threshold | None = None,
) -> tuple[Float[Tensor, "B T"] | None, Bool[Tensor, "B T"], dict[str, float]]:
    """Return importance weights, the mask after rejection, and metrics.

    The weights are `None` without `rollout_is`. No gradient flows.

    Args:
        old_logprob: log-probabilities under the policy that is trained.
        rollout_logprob: those under the policy that sampled.
        action_mask: true on the tokens that count; elsewhere the weight is 0.
        rollout_is: `token` for weights rho, `sequence` for their product over the response.
        rollout_is_threshold: one number, the largest weight; or `low_high`, outside of which a weight is 0.
        rollout_is_batch_normalize: divide the weights by their mean: over tokens, or over responses.
        rollout_rs: what rejects tokens (`token_k1`, ...) or responses (`seq_sum_k1`, `seq_mean_k2`, `seq_max_k3`, ...),
            several separated by commas. k1 = -log rho, k2 = (log rho)^2 / 2, k3 = rho - 1 - log rho.
        rollout_rs_threshold: one bound, or one for each option separated by commas. For k1 `low_high` (one number u
            is `1/u_u`), compared, as logarithms, with k1; else the largest value that is kept.

    Raises:
        ValueError: an unknown option, a threshold that is no positive number or band, or one too few or many.
    """
    mask = action_mask.bool()
    old, rollout = counted(old_logprob.detach(), mask), counted(rollout_logprob.detach(), mask)
    log_ratio = old - rollout
    metrics = mismatch_metrics(old, rollout, mask)
    weights = None
    if rollout_is is not None:
        low, high = band(rollout_is_threshold, "rollout_is_threshold")
        weights = _raw_weights(log_ratio, mask, rollout_is)
        metrics |= weight_metrics(weights, mask, low=low or 1.0 / high, high=high)
        inside = (weights >= low) & (weights <= high) if low is not None else torch.ones_like(mask)
        weights = torch.where(inside, weights.clamp(max=high), torch.zeros_like(weights))
        metrics["rollout_corr/rollout_is_oob_ratio"] = masked_mean((~inside).to(weights.dtype), mask).item()
        if rollout_is_batch_normalize:
            weights, factor = _normalised(weights, mask, rollout_is)
            metrics["rollout_corr/rollout_is_batch_norm_factor"] = factor
    kept = mask
    if rollout_rs is not None:
        kept = mask & _kept(log_ratio, mask, rollout_rs, rollout_rs_threshold, metrics)
        metrics["rollout_corr/rollout_rs_masked_fraction"] = masked_mean((~kept).to(old.dtype), mask).item()
        is_hit = (mask & ~kept).any(-1)
        metrics["rollout_corr/rollout_rs_seq_masked_fraction"] = masked_mean(is_hit.to(old.dtype), mask.any(-1)).item()
    return weights, kept, metrics


def _raw_weights(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    if level not in LEVELS:
        raise ValueError(f"rollout_is must be one of {', '.join(LEVELS)}, got {level!r}")
    if level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    return counted(bounded(log_ratio).exp(), mask)


def _normalised(weights: Tensor, mask: Tensor, level: str) -> tuple[Tensor, float]:
    """Return the weights divided by their mean, and that mean.

    Weights of mean 0 stay as they are.
    """
    mean = masked_mean(weights, mask)
    if level == "sequence":
        mean = masked_mean(masked_mean(weights, mask, -1), mask.any(-1))
    factor = mean.item()
    return (weights / mean, factor) if factor > MIN_MEAN_WEIGHT else (weights, factor)


def _kept(
    log_ratio: Tensor, mask: Tensor, options: str, thresholds: Threshold | None, metrics: dict[str, float]
) -> Tensor:
    """Return where all options keep the token, true at masked positions.

    `metrics` gets what each option rejects.
    """
    kept = torch.ones_like(mask)
    for name, low, high in rejection_bounds(options, thresholds):
        level, _, estimate = name.rpartition("_")
        values = _at_level(ESTIMATES[estimate](bounded(log_ratio)), mask, level)
        keeps = (values >= low) & (values <= high)
        rejected = masked_mean((~keeps).to(log_ratio.dtype), mask).item()
        metrics[f"rollout_corr/rollout_rs_{name}_mean"] = masked_mean(values, mask).item()
        metrics[f"rollout_corr/rollout_rs_{name}_masked_fraction"] = rejected
        kept &= keeps | ~mask
    return kept


def _at_level(values: Tensor, mask: Tensor, level: str) -> Tensor:
    """Return the values per token, or aggregated over each response.

    At each token of a response stands the response's sum, mean or largest value.
    """
    if level == "token":
        return values
    if level == "seq_max":
        largest = torch.where(mask, values, torch.full_like(values, -math.inf)).amax(-1, keepdim=True)
        return largest.expand_as(values)
    of_row = masked_sum if level == "seq_sum" else masked_mean
    return of_row(values, mask, -1).unsqueeze(-1).expand_as(values)
