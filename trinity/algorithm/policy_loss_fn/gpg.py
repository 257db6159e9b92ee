"""Plain policy gradient.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("verl_gpg")
@POLICY_LOSS_FN.register_module("gpg")
class VerlGPGPolicyLossFn(TokenLossFn):
    """-A logprob, by veRL's convention of aggregation.

    Group policy gradient, arXiv:2504.02546v4, eq. 5: no ratio and no clipping.

    Args:
        backend: see `PolicyLossFn`.
        loss_agg_mode: see `agg_loss`.
    """

    summary = "plain policy gradient (arXiv:2504.02546v4, eq. 5)"
    formula = "-A logprob"
    convention = "verl"
    zero_advantage_is_zero_loss = True

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metric `pg_loss`."""
        logprob, advantages = counted(logprob, action_mask), counted(advantages, action_mask)
        loss = self.aggregate(-advantages * logprob, action_mask, rollout_is_weights)
        return loss, {"pg_loss": loss.item()}
