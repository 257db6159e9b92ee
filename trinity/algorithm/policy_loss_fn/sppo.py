"""Softmax PPO (sPPO): the log-ratio inside a trust region.

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
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("sppo")
class SPPOPolicyLossFn(TokenLossFn):
    """A policy loss on tokens inside a band of the ratio.

        -A (logprob - old_logprob) where r is in [1 / (1 + epsilon), 1 + epsilon], else 0

    sPPO of Vaswani et al., arXiv:2108.05828: the surrogate of functional mirror ascent for the softmax representation
    of a policy. The band of r = exp(logprob - old_logprob) in place of its step size is Trinity-RFT's.

    Args:
        backend: see `PolicyLossFn`.
        epsilon: width of the trust region, >= 0.
        loss_agg_mode: see `aggregate_loss`.

    Raises:
        ValueError: a negative `epsilon`.
    """

    summary = "softmax PPO, the log-ratio within a trust region (arXiv:2108.05828)"
    formula = (
        "-A (logprob - old_logprob) where 1 / (1 + {epsilon}) <= r <= 1 + {epsilon}, else 0"
        "\nr = exp(logprob - old_logprob)"
    )
    ranges = {"epsilon": "[0, inf]"}
    zero_advantage_is_zero_loss = True

    def __init__(self, backend: str = "verl", epsilon: float = 0.3, loss_agg_mode: str = "token-mean") -> None:
        super().__init__(backend, loss_agg_mode)
        if epsilon < 0:
            raise ValueError(f"epsilon must be >= 0, got {epsilon}")
        self.epsilon = epsilon

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `pg_loss` and `pg_clipfrac`."""
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = logprob - old_logprob
        ratio = log_ratio.detach().exp()
        is_near = (ratio >= 1.0 / (1.0 + self.epsilon)) & (ratio <= 1.0 + self.epsilon)
        losses = torch.where(is_near, -advantages * log_ratio, torch.zeros_like(logprob))
        note_clipping(ratio, clipped=~is_near)
        loss = self.aggregate(losses, action_mask)
        clipped = masked_mean((~is_near).to(loss.dtype), action_mask)
        return loss, {"pg_loss": loss.item(), "pg_clipfrac": clipped.item()}
