"""Importance-weighted policy gradient.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.log_ratio import is_beyond
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.ratio import clamped_log_ratio
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("importance_sampling")
class ImportanceSamplingPolicyLossFn(TokenLossFn):
    """The importance-weighted policy loss without clipping.

        -A r,   r = exp(logprob - old_logprob), the difference clamped to +-20

    The conservative policy iteration objective, arXiv:1707.06347v2, eq. 6; no clipping of the ratio.

    Args:
        backend: see `PolicyLossFn`.
        loss_agg_mode: see `aggregate_loss`.
    """

    summary = "advantage times ratio, not clipped (arXiv:1707.06347v2, eq. 6)"
    formula = "-A r\nr = exp(logprob - old_logprob)"
    zero_advantage_is_zero_loss = True

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `pg_loss`, `ratio/mean` and `approx_kl`."""
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = clamped_log_ratio(logprob, old_logprob)
        ratio = log_ratio.exp()
        note_clipping(ratio, clipped=is_beyond(logprob - old_logprob))
        loss = self.aggregate(-advantages * ratio, action_mask)
        metrics = {
            "pg_loss": loss.item(),
            "ratio/mean": masked_mean(ratio.detach(), action_mask).item(),
            "approx_kl": masked_mean(-log_ratio.detach(), action_mask).item(),
        }
        return loss, metrics
