"""Supervised loss weighted by the policy's own probability.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("sft_is")
class SFTISPolicyLossFn(TokenLossFn):
    """The supervised loss, each token weighted by its probability.

        -sg(p) log p,   p = exp(logprob)

    Demonstrations are weighted as if a uniform policy had sampled them. Dynamic fine-tuning, arXiv:2508.05629; sg stops
    the gradient.

    Args:
        backend: see `PolicyLossFn`.
        loss_agg_mode: see `aggregate_loss`.
    """

    summary = "negative log-likelihood weighted by the probability (arXiv:2508.05629)"
    formula = "-sg(p) logprob\np = exp(logprob)"

    def __call__(  # type: ignore[override]
        self, logprob: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], **kwargs: Any
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metric `sft_is_loss`."""
        logprob = counted(logprob, action_mask)
        loss = self.aggregate(-logprob * logprob.detach().exp(), action_mask)
        return loss, {"sft_is_loss": loss.item()}
