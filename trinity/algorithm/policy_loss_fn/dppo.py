"""Policy optimisation in a trust region of total variation or KL.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RATIO, clamped_log_ratio, clip_bounds
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn

MIN_PROBABILITY = 1e-8


class DPPOLossFn(TokenLossFn):
    """-sg(min(r, c)) A logprob on the tokens inside the trust region, else 0.

    DPPO, arXiv:2602.04879v3, eq. 12, with the divergence between the two outcomes "this token" and "another" (total
    variation eq. 13, KL eq. 14). A token outside the region is kept if its update leads back into it.
    r = exp(logprob - old_logprob); sg stops the gradient.

    Args:
        backend: see `PolicyLossFn`.
        clip_ratio: both sizes of the region.
        clip_ratio_low: its size where the advantage is not positive, if it differs.
        clip_ratio_high: its size where the advantage is positive, if it differs.
        clip_ratio_c: the largest ratio c > 1; the paper has 20, veRL's default is 3.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: no clip ratio, a negative one, or `clip_ratio_c` not above 1.
    """

    convention = "verl"
    ranges = CLIP_RATIO | {"clip_ratio_c": "(1, inf]"}
    zero_advantage_is_zero_loss = True

    def __init__(
        self,
        backend: str = "verl",
        clip_ratio: float | None = 0.2,
        clip_ratio_low: float | None = None,
        clip_ratio_high: float | None = None,
        clip_ratio_c: float = 3.0,
        loss_agg_mode: str = "token-mean",
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        self.clip_ratio = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, name="clip_ratio")
        if clip_ratio_c <= 1.0:
            raise ValueError(f"clip_ratio_c must be above 1, got {clip_ratio_c}")
        self.clip_ratio_c = clip_ratio_c

    @abstractmethod
    def is_inside(
        self, logprob: Float[Tensor, "B T"], old_logprob: Float[Tensor, "B T"], is_positive: Bool[Tensor, "B T"]
    ) -> Bool[Tensor, "B T"]:
        """Return where a token may be updated."""

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and its metrics.

        The metrics are `pg_loss`, `pg_clipfrac` (tokens outside) and `ppo_kl`.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = clamped_log_ratio(logprob, old_logprob).detach()
        weight = log_ratio.exp().clamp(max=self.clip_ratio_c)
        inside = self.is_inside(logprob.detach(), old_logprob, advantages > 0)
        losses = torch.where(inside, -advantages * weight * logprob, torch.zeros_like(logprob))
        note_clipping(log_ratio.exp(), clipped=~inside)
        loss = self.aggregate(losses, action_mask, rollout_is_weights)
        metrics = {
            "pg_loss": loss.item(),
            "pg_clipfrac": masked_mean((~inside).to(loss.dtype), action_mask).item(),
            "ppo_kl": masked_mean(-log_ratio, action_mask).item(),
        }
        return loss, metrics


@POLICY_LOSS_FN.register_module("verl_dppo_tv")
@POLICY_LOSS_FN.register_module("dppo_tv")
class VerlDPPOTVPolicyLossFn(DPPOLossFn):
    """DPPO with the total variation |p - p_old|; p = exp(logprob).

    See `DPPOLossFn`.
    """

    summary = "trust region by total variation (arXiv:2602.04879v3, eq. 12 and 13)"
    formula = (
        "-A sg(min(r, {clip_ratio_c})) logprob inside the trust region, else 0"
        "\nr = exp(logprob - old_logprob)"
        "\ninside: p - p_old <= {clip_ratio_high|clip_ratio} where A > 0, p - p_old >= "
        "-{clip_ratio_low|clip_ratio} elsewhere"
        "\np = exp(logprob), p_old = exp(old_logprob)"
    )

    def is_inside(
        self, logprob: Float[Tensor, "B T"], old_logprob: Float[Tensor, "B T"], is_positive: Bool[Tensor, "B T"]
    ) -> Bool[Tensor, "B T"]:
        """Return where the total variation is within its bound.

        `p - p_old <= high` for a positive advantage, `p - p_old >= -low` otherwise.
        """
        difference = logprob.exp() - old_logprob.exp()
        return torch.where(is_positive, difference <= self.clip_ratio[1], difference >= -self.clip_ratio[0])


@POLICY_LOSS_FN.register_module("verl_dppo_kl")
@POLICY_LOSS_FN.register_module("dppo_kl")
class VerlDPPOKLPolicyLossFn(DPPOLossFn):
    """DPPO with KL(p_old, p) of the two outcomes; p = exp(logprob).

    See `DPPOLossFn`.
    """

    summary = "trust region by KL divergence (arXiv:2602.04879v3, eq. 12 and 14)"
    formula = (
        "-A sg(min(r, {clip_ratio_c})) logprob inside the trust region, else 0"
        "\nr = exp(logprob - old_logprob)"
        "\ninside: KL <= {clip_ratio_high|clip_ratio} or p <= p_old where A > 0, KL <= "
        "{clip_ratio_low|clip_ratio} or p >= p_old elsewhere"
        "\nKL = p_old ln(p_old / p) + (1 - p_old) ln((1 - p_old) / (1 - p)), p = exp(logprob), p_old = "
        "exp(old_logprob)"
    )

    def is_inside(
        self, logprob: Float[Tensor, "B T"], old_logprob: Float[Tensor, "B T"], is_positive: Bool[Tensor, "B T"]
    ) -> Bool[Tensor, "B T"]:
        """Return where KL is within its bound, or the update reduces it.

        `KL <= high or p <= p_old` for a positive advantage, `KL <= low or p >= p_old` otherwise.
        """
        new, old = logprob.exp(), old_logprob.exp()
        others = (1.0 - old) * ((1.0 - old + MIN_PROBABILITY) / (1.0 - new + MIN_PROBABILITY)).log()
        divergence = old * (old_logprob - logprob) + others
        up = (divergence <= self.clip_ratio[1]) | (new <= old)
        down = (divergence <= self.clip_ratio[0]) | (new >= old)
        return torch.where(is_positive, up, down)
