"""The base of losses that are one number per token, aggregated.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.aggregation import (
    LOSS_AGG_MODES,
    VERL_LOSS_AGG_MODES,
    agg_loss,
    aggregate_loss,
    counted,
)
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn


class TokenLossFn(PolicyLossFn):
    """A policy loss that aggregates a loss per token.

    Args:
        backend: see `PolicyLossFn`.
        loss_agg_mode: see `aggregate_loss`, and `agg_loss` for veRL's convention.

    Raises:
        ValueError: an unknown `loss_agg_mode`.
    """

    loss_agg_mode: str

    def __init__(self, backend: str = "verl", loss_agg_mode: str = "token-mean") -> None:
        super().__init__(backend)
        modes = LOSS_AGG_MODES if self.counts_empty_rows else VERL_LOSS_AGG_MODES
        if loss_agg_mode not in modes:
            raise ValueError(f"loss_agg_mode must be one of {', '.join(modes)}, got {loss_agg_mode!r}")
        self.loss_agg_mode = loss_agg_mode

    def aggregate(
        self,
        losses: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the aggregated losses, each multiplied by its weight.

        No gradient flows through the weights. Without weights the losses are aggregated as they are.
        """
        if rollout_is_weights is not None:
            weights = counted(rollout_is_weights.detach(), action_mask)
            note_clipping(rejected=action_mask & (weights == 0))
            losses = losses * weights
        if self.counts_empty_rows:
            return aggregate_loss(losses, action_mask, self.loss_agg_mode)
        return agg_loss(losses, action_mask, self.loss_agg_mode)
