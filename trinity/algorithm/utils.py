"""Log-probabilities and entropy of token logits.

The functions over tensors have their published names here.

Dimension key: V = vocabulary; other dimensions are free. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.algorithm.aggregation import (
    LOSS_AGG_MODES,
    VERL_LOSS_AGG_MODES,
    agg_loss,
    aggregate_loss,
    masked_mean,
    masked_sum,
)
from trinity.algorithm.rollout_correction import compute_rollout_correction
from trinity.algorithm.statistics import masked_var, masked_whiten
from trinity.algorithm.value_loss import compute_value_loss

__all__ = [
    "LOSS_AGG_MODES",
    "VERL_LOSS_AGG_MODES",
    "agg_loss",
    "aggregate_loss",
    "compute_rollout_correction",
    "compute_value_loss",
    "entropy_from_logits",
    "logprobs_from_logits",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "prefix_metrics",
]


def logprobs_from_logits(
    logits: Float[Tensor, "*shape V"], labels: Int[Tensor, "*shape"], temperature: float = 1.0
) -> Float[Tensor, "*shape"]:
    """Return the log-probability (nats) of `labels`.

    It is that under softmax(logits / temperature).
    """
    scaled = logits if temperature == 1.0 else logits / temperature
    return scaled.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scaled, dim=-1)


def entropy_from_logits(logits: Float[Tensor, "*shape V"], temperature: float = 1.0) -> Float[Tensor, "*shape"]:
    """Return the entropy (nats) of softmax(logits / temperature)."""
    logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def prefix_metrics(
    src_metrics: Mapping[str, Any], prefix: str, dst_metrics: MutableMapping[str, Any] | None = None
) -> MutableMapping[str, Any]:
    """Return metrics under `<prefix>/<name>`, added to `dst_metrics` if given."""
    renamed = {f"{prefix}/{name}": value for name, value in src_metrics.items()}
    if dst_metrics is None:
        return renamed
    dst_metrics.update(renamed)
    return dst_metrics
