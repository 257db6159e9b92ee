"""Loss of the value model.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.aggregation import agg_loss, counted, masked_mean


def compute_value_loss(
    vpreds: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    cliprange_value: float = 0.5,
    loss_agg_mode: str = "token-mean",
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Return the clipped value loss and the metric `vf_clipfrac`.

        half the aggregated max((v - R)^2, (clip(v, V - c, V + c) - R)^2)

    arXiv:2005.12729, section 3, first point. The gradient flows through v; R and V are constants.

    Args:
        vpreds: v, what the value model predicts now.
        returns: R, the targets.
        values: V, what it predicted before the update.
        action_mask: true on the tokens that count.
        cliprange_value: c >= 0, how far v may move from V before the gradient stops.
        loss_agg_mode: see `agg_loss`, also for the rest.
        dp_size: see `agg_loss`.
        batch_num_tokens: see `agg_loss`.
        global_batch_size: see `agg_loss`.
        loss_scale_factor: see `agg_loss`.

    Raises:
        ValueError: a negative `cliprange_value`, or an unknown `loss_agg_mode`.
    """
    if cliprange_value < 0:
        raise ValueError(f"cliprange_value must be >= 0, got {cliprange_value}")
    predicted, target, old = (counted(tensor, action_mask) for tensor in (vpreds, returns, values))
    clipped = torch.maximum(torch.minimum(predicted, old + cliprange_value), old - cliprange_value)
    plain_losses, clipped_losses = (predicted - target).square(), (clipped - target).square()
    loss = 0.5 * agg_loss(
        torch.maximum(plain_losses, clipped_losses),
        action_mask,
        loss_agg_mode,
        dp_size,
        batch_num_tokens,
        global_batch_size,
        loss_scale_factor,
    )
    is_clipped = (clipped_losses > plain_losses).to(loss.dtype)
    return loss, {"vf_clipfrac": masked_mean(is_clipped, action_mask).item()}
