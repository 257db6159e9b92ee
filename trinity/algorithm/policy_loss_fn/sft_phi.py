"""Supervised loss weighted by the policy's uncertainty.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("sft_phi")
class SFTPhiPolicyLossFn(TokenLossFn):
    """-sg(p (1 - p)) min(log p, log cutoff) with p = exp(logprob).

    The token weight phi of CHORD, arXiv:2508.11408, eq. 5 and 6: least for tokens that the policy is sure of, and for
    those it finds impossible. Tokens above the cutoff probability have no gradient. sg stops the gradient.

    Args:
        backend: see `PolicyLossFn`.
        cutoff_prob: in (0, 1]; 1 cuts nothing off.
        loss_agg_mode: see `aggregate_loss`.

    Raises:
        ValueError: `cutoff_prob` outside (0, 1].
    """

    summary = "negative log-likelihood weighted by p (1 - p) (arXiv:2508.11408, eq. 5 and 6)"
    formula = "-sg(p (1 - p)) min(logprob, ln {cutoff_prob})\np = exp(logprob)"
    ranges = {"cutoff_prob": "(0, 1]"}

    def __init__(self, backend: str = "verl", cutoff_prob: float = 1.0, loss_agg_mode: str = "token-mean") -> None:
        super().__init__(backend, loss_agg_mode)
        if not 0.0 < cutoff_prob <= 1.0:
            raise ValueError(f"cutoff_prob must be in (0, 1], got {cutoff_prob}")
        self.cutoff_prob = cutoff_prob

    def __call__(  # type: ignore[override]
        self, logprob: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], **kwargs: Any
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metric `sft_phi_loss`."""
        logprob = counted(logprob, action_mask)
        probability = logprob.detach().exp()
        losses = -logprob.clamp(max=math.log(self.cutoff_prob)) * probability * (1.0 - probability)
        note_clipping(masked=logprob > math.log(self.cutoff_prob))
        loss = self.aggregate(losses, action_mask)
        return loss, {"sft_phi_loss": loss.item()}
