"""Geometric-mean policy optimisation.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.log_ratio import bounded, is_beyond
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RATIO, clip_bounds

MIN_WEIGHT = 1e-10


@POLICY_LOSS_FN.register_module("verl_geo_mean")
@POLICY_LOSS_FN.register_module("geo_mean")
class VerlGeoMeanPolicyLossFn(PolicyLossFn):
    """Geometric-mean policy optimisation, a mean over all responses.

        -A exp(mean over tokens of the clipped log-ratio)

    GMPO, arXiv:2507.20673v3, eq. 4. The log-ratio d = logprob - old_logprob is clipped to [-low, high] on the side that
    the sign of A makes harmful, and its mean to +-20; A is the mean of the response's advantages. As in veRL the mean
    is over all B responses, those without tokens included, whatever the aggregation mode.

    Args:
        backend: see `PolicyLossFn`.
        clip_ratio: both bounds of the log-ratio.
        clip_ratio_low: lower bound, if it differs.
        clip_ratio_high: upper bound, if it differs.

    Raises:
        ValueError: no clip ratio, or a negative one.
    """

    summary = "geometric mean of clipped ratios (arXiv:2507.20673v3, eq. 4)"
    formula = (
        "= mean over the responses of -mean(A) exp(mean over the tokens of d)"
        "\nd = logprob - old_logprob, at most {clip_ratio_high|clip_ratio} where A > 0 and at least "
        "-{clip_ratio_low|clip_ratio} where A < 0"
    )
    ranges = CLIP_RATIO
    zero_advantage_is_zero_loss = True

    def __init__(
        self,
        backend: str = "verl",
        clip_ratio: float | None = 0.2,
        clip_ratio_low: float | None = None,
        clip_ratio_high: float | None = None,
    ) -> None:
        super().__init__(backend)
        self.clip_ratio = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, name="clip_ratio")
        # A mean over all rows: the trainer weights each micro-batch by its share of the rows.
        self.loss_agg_mode = "seq-mean-token-sum"

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `pg_loss`, `pg_clipfrac` and `ppo_kl`.

        Weights are applied by their geometric mean.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = logprob - old_logprob
        clamped = log_ratio.clamp(-self.clip_ratio[0], self.clip_ratio[1])
        sign = advantages.sign()
        clipped = sign * torch.minimum(sign * log_ratio, sign * clamped)
        mean = masked_mean(clipped, action_mask, -1)
        note_clipping(bounded(log_ratio).exp(), clipped=(clipped != log_ratio) | is_beyond(mean).unsqueeze(-1))
        losses = -masked_mean(advantages, action_mask, -1) * bounded(mean).exp()
        if rollout_is_weights is not None:
            weights = counted(rollout_is_weights.detach(), action_mask)
            losses = losses * masked_mean((weights + MIN_WEIGHT).log(), action_mask, -1).exp()
        loss = losses.mean()
        is_clipped = (clipped != log_ratio).to(loss.dtype)
        metrics = {
            "pg_loss": loss.item(),
            "pg_clipfrac": masked_mean(is_clipped, action_mask).item(),
            "ppo_kl": masked_mean(-log_ratio.detach(), action_mask).item(),
        }
        return loss, metrics
