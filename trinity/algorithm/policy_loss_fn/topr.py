"""Tapered off-policy REINFORCE.

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
from trinity.algorithm.policy_loss_fn.ratio import clamped_log_ratio
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("topr")
class TOPRPolicyLossFn(TokenLossFn):
    """REINFORCE that tapers the weight of bad responses.

        -sg(alpha) A logprob,   alpha = 1 for A above the threshold, else clip(r, 0, 1)

    arXiv:2503.14286v2, eq. 8: good responses are learned at full weight, bad ones are unlearnt only as far as the
    policy would still produce them. The ratio r = exp(logprob - old_logprob) is that of the token, where the paper has
    that of the response. sg stops the gradient.

    Args:
        backend: see `PolicyLossFn`.
        advantage_threshold: advantages above it count as positive.
        loss_agg_mode: see `aggregate_loss`.
    """

    summary = "tapered off-policy REINFORCE (arXiv:2503.14286v2, eq. 8)"
    formula = (
        "-sg(alpha) A logprob"
        "\nalpha = 1 where A > {advantage_threshold}, else clip(r, 0, 1)"
        "\nr = exp(logprob - old_logprob)"
    )
    zero_advantage_is_zero_loss = True

    def __init__(
        self, backend: str = "verl", advantage_threshold: float = 0.0, loss_agg_mode: str = "token-mean"
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        self.advantage_threshold = advantage_threshold

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and its metrics.

        The metrics are `topr_loss`, `avg_alpha` and `avg_ratio`.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        ratio = clamped_log_ratio(logprob, old_logprob).detach().exp()
        is_positive = advantages > self.advantage_threshold
        alpha = torch.where(is_positive, torch.ones_like(ratio), ratio.clamp(0.0, 1.0))
        note_clipping(ratio)
        loss = self.aggregate(-alpha * advantages * logprob, action_mask)
        metrics = {
            "topr_loss": loss.item(),
            "avg_alpha": masked_mean(alpha, action_mask).item(),
            "avg_ratio": masked_mean(ratio, action_mask).item(),
        }
        return loss, metrics
