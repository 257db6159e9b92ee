"""Masked aggregation, log-probabilities and entropy.

Dimension key: B = responses, T = response positions, V = vocabulary. Logarithms are natural. A position whose
mask is false holds an arbitrary number and influences nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LOSS_AGG_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def masked_sum(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], axis: int | None = None
) -> Float[Tensor, "..."]:
    """Return the sum of the counted `values`, over everything or over `axis`."""
    counted = torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))
    return counted.sum() if axis is None else counted.sum(axis)


def masked_mean(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], axis: int | None = None
) -> Float[Tensor, "..."]:
    """Return the mean of the counted `values`, over everything or over `axis`; 0 where nothing is counted."""
    count = mask.bool().sum() if axis is None else mask.bool().sum(axis)
    return masked_sum(values, mask, axis) / count.clamp(min=1)


def aggregate_loss(
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    loss_agg_mode: str = "token-mean",
    normalizer: float | None = None,
) -> Float[Tensor, ""]:
    """Return one number for the per-token `values`; 0 where nothing is counted.

    Args:
        values: per-token loss.
        mask: true on the tokens that count.
        loss_agg_mode: `token-mean` the mean over tokens; `seq-mean-token-sum` the mean over all rows of row sums;
            `seq-mean-token-mean` the mean over all rows of row means, a row without tokens adding 0;
            `seq-mean-token-sum-norm` the sum divided by `normalizer` (Dr. GRPO, arXiv:2503.20783).
        normalizer: divisor of the last mode; T by default.

    Raises:
        ValueError: another mode.
    """
    if loss_agg_mode == "token-mean":
        return masked_mean(values, mask)
    if loss_agg_mode == "seq-mean-token-sum":
        return masked_sum(values, mask, -1).mean()
    if loss_agg_mode == "seq-mean-token-mean":
        return masked_mean(values, mask, -1).mean()
    if loss_agg_mode == "seq-mean-token-sum-norm":
        return masked_sum(values, mask) / (values.shape[-1] if normalizer is None else normalizer)
    raise ValueError(f"loss_agg_mode must be one of {', '.join(LOSS_AGG_MODES)}, got {loss_agg_mode!r}")


def logprobs_from_logits(
    logits: Float[Tensor, "*shape V"], labels: Int[Tensor, "*shape"], temperature: float = 1.0
) -> Float[Tensor, "*shape"]:
    """Return the log-probability (nats) of `labels` under softmax(logits / temperature)."""
    scaled = logits if temperature == 1.0 else logits / temperature
    return scaled.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scaled, dim=-1)


def entropy_from_logits(logits: Float[Tensor, "*shape V"], temperature: float = 1.0) -> Float[Tensor, "*shape"]:
    """Return the entropy (nats) of softmax(logits / temperature)."""
    logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)
