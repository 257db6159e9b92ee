"""Policy gradient with a penalty on the tokens of highest covariance.

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
from trinity.algorithm.policy_loss_fn.covariance import token_covariance
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("verl_kl_cov")
@POLICY_LOSS_FN.register_module("kl_cov")
class VerlKLCovPolicyLossFn(TokenLossFn):
    """A policy loss with a penalty on tokens of highest covariance.

        -A r + coef |logprob - old_logprob| on the tokens of highest covariance,   r = exp(logprob - old_logprob)

    KL-Cov of arXiv:2505.22617v1, eq. 13 and 14; see `token_covariance`. r is not clipped; the difference is clamped to
    +-20. max(1, `kl_cov_ratio` of the counted tokens) are penalised. Means and choice are over the whole
    mini-batch: the trainer passes the chosen tokens as `selected`. Without it they are over the batch given.

    Args:
        backend: see `PolicyLossFn`.
        kl_cov_ratio: fraction of the counted tokens that are penalised, in [0, 1].
        ppo_kl_coef: coef, >= 0.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: `kl_cov_ratio` outside [0, 1] or a negative `ppo_kl_coef`.
    """

    summary = "a KL term on the tokens of highest covariance (arXiv:2505.22617v1, eq. 13 and 14)"
    formula = (
        "-A r, plus {ppo_kl_coef} |logprob - old_logprob| on the tokens of highest covariance"
        "\nthese are a share of {kl_cov_ratio} of the tokens, at least one"
        "\ncov = (A - mean A)(logprob - mean logprob), means over the tokens of the mini-batch"
        "\nr = exp(logprob - old_logprob)"
    )
    ranges = {"kl_cov_ratio": "[0, 1]", "ppo_kl_coef": "[0, inf]"}
    convention = "verl"

    def __init__(
        self,
        backend: str = "verl",
        kl_cov_ratio: float = 2e-4,
        ppo_kl_coef: float = 0.1,
        loss_agg_mode: str = "token-mean",
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        if not 0.0 <= kl_cov_ratio <= 1.0 or ppo_kl_coef < 0:
            raise ValueError(
                f"kl_cov_ratio must be in [0, 1] and ppo_kl_coef >= 0, got {kl_cov_ratio} and {ppo_kl_coef}"
            )
        self.kl_cov_ratio = kl_cov_ratio
        self.ppo_kl_coef = ppo_kl_coef

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
        selected: Bool[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `pg_loss` and `ppo_kl`.

        The latter is the mean of |logprob - old_logprob|.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = logprob - old_logprob
        penalised = selected
        if penalised is None:
            penalised = self.select_tokens(logprob, action_mask, advantages)
        penalty = torch.where(penalised, self.ppo_kl_coef * log_ratio.abs(), torch.zeros_like(logprob))
        ratio = bounded(log_ratio).exp()
        note_clipping(ratio, clipped=is_beyond(log_ratio) & ~penalised)
        losses = -advantages * ratio + penalty
        loss = self.aggregate(losses, action_mask, rollout_is_weights)
        distance = masked_mean(log_ratio.detach().abs(), action_mask)
        return loss, {"pg_loss": loss.item(), "ppo_kl": distance.item()}

    def select_tokens(
        self,
        logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        **kwargs: Any,
    ) -> Bool[Tensor, "B T"]:
        """Return the tokens that are penalised; see `PolicyLossFn`."""
        logprob, advantages = counted(logprob, action_mask), counted(advantages, action_mask)
        covariance = token_covariance(advantages, logprob, action_mask)
        num_tokens = int(action_mask.sum())
        wanted = min(max(1, int(num_tokens * self.kl_cov_ratio)), num_tokens)
        lowest = torch.full_like(covariance, float("-inf"))
        places = torch.where(action_mask, covariance, lowest).flatten().topk(wanted).indices
        penalised = torch.zeros_like(action_mask.flatten())
        penalised[places] = True
        return penalised.view_as(action_mask)
