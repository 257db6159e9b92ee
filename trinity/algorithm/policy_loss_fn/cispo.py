"""Clipped importance sampling weights, by Trinity's and veRL's convention.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RATIO, clamped_log_ratio, clip_bounds
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("cispo")
class CISPOPolicyLossFn(TokenLossFn):
    """REINFORCE with clipped importance weights.

        -A sg(clip(r, 1 - low, 1 + high)) logprob,   r = exp(logprob - old_logprob)

    sg stops the gradient, so that the weight is a constant and a clipped token is still trained. CISPO of
    arXiv:2506.13585v1, eq. 4 and 5, with the mask of eq. 6 and 7: tokens with A > 0 and r > 1 + mask high, or A < 0 and
    r < 1 - mask low, are left out.

    Args:
        backend: see `PolicyLossFn`.
        clip_range_low: lower bound of the weight, as a distance from 1; 1 is no bound.
        clip_range_high: upper bound of the weight.
        enable_mask_clip: leave tokens out as PPO's clipping does.
        mask_clip_range_low: lower bound of the mask.
        mask_clip_range_high: upper bound of the mask.
        loss_agg_mode: see `aggregate_loss`.

    Raises:
        ValueError: a negative bound.
    """

    summary = "policy gradient with clipped importance weights (arXiv:2506.13585v1, eq. 4, 5, 6 and 7)"
    formula = (
        "-A sg(clip(r, 1 - {clip_range_low}, 1 + {clip_range_high})) logprob"
        "\nr = exp(logprob - old_logprob)"
        "\n?enable_mask_clip 0 where A > 0 and r > 1 + {mask_clip_range_high}, and where A < 0 and r < 1 - "
        "{mask_clip_range_low}"
    )
    ranges = {
        "clip_range_low": "[0, inf]",
        "clip_range_high": "[0, inf]",
        "mask_clip_range_low": "[0, inf]",
        "mask_clip_range_high": "[0, inf]",
    }
    zero_advantage_is_zero_loss = True

    def __init__(
        self,
        backend: str = "verl",
        clip_range_low: float = 1.0,
        clip_range_high: float = 0.28,
        enable_mask_clip: bool = False,
        mask_clip_range_low: float = 1.0,
        mask_clip_range_high: float = 0.28,
        loss_agg_mode: str = "token-mean",
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        self.clip_range = clip_bounds(None, clip_range_low, clip_range_high, name="clip_range")
        self.mask_range = clip_bounds(None, mask_clip_range_low, mask_clip_range_high, name="mask_clip_range")
        self.enable_mask_clip = enable_mask_clip

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and its metrics.

        The metrics are `cispo_loss`, `ppo_kl`, `pg_clipfrac` and `unmasked_frac`.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = clamped_log_ratio(logprob, old_logprob).detach()
        ratio = log_ratio.exp()
        weight = ratio.clamp(1.0 - self.clip_range[0], 1.0 + self.clip_range[1])
        losses = -advantages * weight * logprob
        unmasked = torch.ones_like(action_mask)
        if self.enable_mask_clip:
            is_far_up = (advantages > 0) & (ratio > 1.0 + self.mask_range[1])
            is_far_down = (advantages < 0) & (ratio < 1.0 - self.mask_range[0])
            unmasked = ~(is_far_up | is_far_down)
            losses = torch.where(unmasked, losses, torch.zeros_like(losses))
        note_clipping(ratio, clipped=~unmasked)
        loss = self.aggregate(losses, action_mask, rollout_is_weights)
        metrics = {
            "cispo_loss": loss.item(),
            "ppo_kl": masked_mean(-log_ratio, action_mask).item(),
            "pg_clipfrac": masked_mean((ratio != weight).to(loss.dtype), action_mask).item(),
            "unmasked_frac": masked_mean(unmasked.to(loss.dtype), action_mask).item(),
        }
        return loss, metrics


@POLICY_LOSS_FN.register_module("verl_cispo")
class VerlCISPOPolicyLossFn(CISPOPolicyLossFn):
    """Clipped importance sampling weights by veRL's convention, no mask.

    The convention is that of aggregation and names.

    Args:
        backend: see `PolicyLossFn`.
        clip_ratio: both bounds of the weight, as distances from 1.
        clip_ratio_low: lower bound, if it differs.
        clip_ratio_high: upper bound, if it differs.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: no clip ratio, or a negative one.
    """

    summary = "as cispo without mask"
    formula = (
        "-A sg(clip(r, 1 - {clip_ratio_low|clip_ratio}, 1 + {clip_ratio_high|clip_ratio})) logprob"
        "\nr = exp(logprob - old_logprob)"
    )
    ranges = CLIP_RATIO
    convention = "verl"

    def __init__(
        self,
        backend: str = "verl",
        clip_ratio: float | None = 0.2,
        clip_ratio_low: float | None = None,
        clip_ratio_high: float | None = None,
        loss_agg_mode: str = "token-mean",
    ) -> None:
        low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, name="clip_ratio")
        super().__init__(backend, low, high, loss_agg_mode=loss_agg_mode)
