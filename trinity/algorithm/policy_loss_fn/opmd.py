"""Online policy mirror descent.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("opmd")
class OPMDPolicyLossFn(TokenLossFn):
    """-A logprob / (1 + tau).

    The simplified online policy mirror descent of Trinity-RFT (arXiv:2505.17826), after the gradient of Kimi k1.5
    (arXiv:2501.12599v4, eq. 3): taken at the sampling policy, where its squared log-ratio vanishes, and scaled so that
    the step does not grow with tau.

    Args:
        backend: see `PolicyLossFn`.
        tau: temperature of the mirror descent, >= 0.
        loss_agg_mode: see `aggregate_loss`.

    Raises:
        ValueError: a negative `tau`.
    """

    summary = "online policy mirror descent (arXiv:2505.17826; after arXiv:2501.12599v4, eq. 3)"
    formula = "-A logprob / (1 + {tau})"
    ranges = {"tau": "[0, inf]"}
    zero_advantage_is_zero_loss = True

    def __init__(self, backend: str = "verl", tau: float = 1.0, loss_agg_mode: str = "token-mean") -> None:
        super().__init__(backend, loss_agg_mode)
        if tau < 0:
            raise ValueError(f"tau must be >= 0, got {tau}")
        self.tau = tau

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metric `opmd_loss`."""
        logprob, advantages = counted(logprob, action_mask), counted(advantages, action_mask)
        loss = self.aggregate(-advantages * logprob, action_mask) / (1.0 + self.tau)
        return loss, {"opmd_loss": loss.item()}
