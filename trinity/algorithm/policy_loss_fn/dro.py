"""Direct reward optimisation.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("verl_dro")
@POLICY_LOSS_FN.register_module("dro")
class VerlDROPolicyLossFn(TokenLossFn):
    """-(A logprob - beta (logprob - old_logprob)^2 / 2).

    The policy part of DRO, arXiv:2405.19107v1, eq. 8 divided by its tau (algorithm 1): a policy gradient held back by
    a square instead of a clip. Where we differ, as veRL does: it is taken per token, the reference is the policy that
    sampled, and A stands for the reward minus the value.

    Args:
        backend: see `PolicyLossFn`.
        dro_beta: beta > 0; has to be given.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: `dro_beta` missing or not positive.
    """

    summary = "policy gradient with a squared log-ratio (arXiv:2405.19107v1, eq. 8); dro_beta is required"
    formula = "-(A logprob - {dro_beta} (logprob - old_logprob)^2 / 2)"
    ranges = {"dro_beta": "(0, inf]"}
    needed_if = {"dro_beta": ""}
    convention = "verl"

    def __init__(self, backend: str = "verl", dro_beta: float | None = None, loss_agg_mode: str = "token-mean") -> None:
        super().__init__(backend, loss_agg_mode)
        if dro_beta is None or dro_beta <= 0:
            raise ValueError(f"verl_dro needs dro_beta > 0, got {dro_beta}")
        self.dro_beta = dro_beta

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `pg_loss` and `ppo_kl`."""
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = logprob - old_logprob
        losses = 0.5 * self.dro_beta * log_ratio.square() - advantages * logprob
        loss = self.aggregate(losses, action_mask, rollout_is_weights)
        return loss, {"pg_loss": loss.item(), "ppo_kl": masked_mean(-log_ratio.detach(), action_mask).item()}
