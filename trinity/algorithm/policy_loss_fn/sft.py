"""Supervised loss.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("sft")
class SFTPolicyLossFn(TokenLossFn):
    """Negative log-likelihood of the counted tokens.

    Args:
        backend: see `PolicyLossFn`.
        loss_agg_mode: see `aggregate_loss`.
    """

    summary = "negative log-likelihood of the unmasked tokens"
    formula = "-logprob"

    def __call__(  # type: ignore[override]
        self, logprob: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], **kwargs: Any
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss (nats) and the metric `sft_loss`."""
        loss = self.aggregate(-logprob, action_mask)
        return loss, {"sft_loss": loss.item()}
