"""Policy gradient without some of the tokens of high covariance.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.log_ratio import is_beyond
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.covariance import token_covariance
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RATIO, clamped_log_ratio, clip_bounds
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("verl_clip_cov")
@POLICY_LOSS_FN.register_module("clip_cov")
class VerlClipCovPolicyLossFn(TokenLossFn):
    """PPO's loss, 0 for some tokens of middling covariance.

        max(-A r, -A clip(r, 1 - low, 1 + high)),   r = exp(logprob - old_logprob), the difference clamped to +-20

    Clip-Cov of arXiv:2505.22617v1, eq. 11 and 12; see `token_covariance`. Candidates are tokens whose covariance is
    between the bounds and that the ratio does not clip already. max(1, `clip_cov_ratio` of the counted tokens) of them
    get loss 0. They are chosen at random by a generator that depends on the batch's sizes only, among candidates sorted
    by covariance: the same batch gives the same loss, in whatever order its rows are. Means and choice are over the
    whole mini-batch: the trainer passes the chosen tokens as `selected`. Without it they are over the batch given.

    Args:
        backend: see `PolicyLossFn`.
        clip_ratio: both bounds of the ratio, as distances from 1.
        clip_ratio_low: lower bound, if it differs.
        clip_ratio_high: upper bound, if it differs.
        clip_cov_ratio: fraction of the counted tokens to take out, in [0, 1].
        clip_cov_lb: lower bound of the covariance.
        clip_cov_ub: upper bound of the covariance.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: no clip ratio or a negative one, or `clip_cov_ratio` outside [0, 1].
    """

    summary = "some tokens of high covariance left out (arXiv:2505.22617v1, eq. 11 and 12)"
    formula = (
        "max(-A r, -A clip(r, 1 - {clip_ratio_low|clip_ratio}, 1 + {clip_ratio_high|clip_ratio}))"
        "\n0 for a share of {clip_cov_ratio} of the tokens, at least one, drawn among those not clipped with "
        "{clip_cov_lb} < cov < {clip_cov_ub}"
        "\ncov = (A - mean A)(logprob - mean logprob), means over the tokens of the mini-batch"
        "\nr = exp(logprob - old_logprob)"
    )
    ranges = CLIP_RATIO | {"clip_cov_ratio": "[0, 1]"}
    convention = "verl"

    def __init__(
        self,
        backend: str = "verl",
        clip_ratio: float | None = 0.2,
        clip_ratio_low: float | None = None,
        clip_ratio_high: float | None = None,
        clip_cov_ratio: float = 2e-4,
        clip_cov_lb: float = 1.0,
        clip_cov_ub: float = 5.0,
        loss_agg_mode: str = "token-mean",
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        self.clip_ratio = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, name="clip_ratio")
        if not 0.0 <= clip_cov_ratio <= 1.0:
            raise ValueError(f"clip_cov_ratio must be in [0, 1], got {clip_cov_ratio}")
        self.clip_cov_ratio = clip_cov_ratio
        self.clip_cov_lb = clip_cov_lb
        self.clip_cov_ub = clip_cov_ub

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
        """Return the loss and its metrics.

        The metrics are `pg_loss`, `pg_clipfrac` (tokens taken out) and `ppo_kl`.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = clamped_log_ratio(logprob, old_logprob)
        plain, clipped = self._surrogates(log_ratio, advantages)
        out = selected
        if out is None:
            out = self.select_tokens(logprob, old_logprob, action_mask, advantages)
        losses = torch.where(out, torch.zeros_like(plain), torch.maximum(plain, clipped))
        is_clipped = (clipped > plain) | is_beyond(logprob - old_logprob)
        note_clipping(log_ratio.exp(), clipped=is_clipped, masked=out)
        loss = self.aggregate(losses, action_mask, rollout_is_weights)
        metrics = {
            "pg_loss": loss.item(),
            "pg_clipfrac": masked_mean(out.to(loss.dtype), action_mask).item(),
            "ppo_kl": masked_mean(-log_ratio.detach(), action_mask).item(),
        }
        return loss, metrics

    def select_tokens(
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        **kwargs: Any,
    ) -> Bool[Tensor, "B T"]:
        """Return the tokens whose loss is set to 0; see `PolicyLossFn`."""
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        plain, clipped = self._surrogates(clamped_log_ratio(logprob.detach(), old_logprob), advantages)
        covariance = token_covariance(advantages, logprob, action_mask)
        between = (covariance > self.clip_cov_lb) & (covariance < self.clip_cov_ub)
        return self._chosen(between & action_mask & ~(clipped > plain), action_mask, covariance)

    def _surrogates(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - self.clip_ratio[0], 1.0 + self.clip_ratio[1])
        return -advantages * ratio, -advantages * clipped

    def _chosen(self, candidates: Tensor, action_mask: Tensor, covariance: Tensor) -> Tensor:
        """Return where a candidate is taken out, whatever the row order."""
        places = candidates.flatten().nonzero().squeeze(-1)
        places = places[covariance.flatten()[places].argsort()]
        num_tokens = int(action_mask.sum())
        wanted = max(int(self.clip_cov_ratio * num_tokens), 1)
        generator = torch.Generator().manual_seed(num_tokens * 1_000_003 + len(places))
        order = torch.randperm(len(places), generator=generator).to(places.device)
        out = torch.zeros_like(candidates.flatten())
        out[places[order[:wanted]]] = True
        return out.view_as(candidates)
