"""Clipped surrogate loss, by Trinity's and by veRL's convention.

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
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RANGE, CLIP_RATIO, clamped_log_ratio, clip_bounds
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("ppo")
class PPOPolicyLossFn(TokenLossFn):
    """max(-A r, -A clip(r, 1 - low, 1 + high)), for A < 0 at most -A c.

    The clipped surrogate of arXiv:1707.06347v2, eq. 7, with the dual clip of arXiv:1912.09729v3, eq. 5.
    r = exp(logprob - old_logprob), the difference clamped to +-20. Sequence masking: arXiv:2512.02556, section 3.1.

    Args:
        backend: see `PolicyLossFn`.
        clip_range: both bounds of the ratio, as distances from 1.
        clip_range_low: lower bound, if it differs.
        clip_range_high: upper bound, if it differs.
        clip_ratio_c: dual clip constant c > 1.
        loss_agg_mode: see `aggregate_loss`.
        enable_sequence_masking: leave out tokens of negative advantage in responses that the policy has moved away
            from, that is mean(old_logprob - logprob) > `delta_sequence_masking`.
        delta_sequence_masking: that bound, in nats a token.
        fallback_to_policy_gradient: use r = 1 with its gradient, the plain policy gradient.

    Raises:
        ValueError: no clip range, a negative one, or `clip_ratio_c` not above 1.
    """

    summary = "clipped surrogate (arXiv:1707.06347v2, eq. 7) with dual clip (arXiv:1912.09729v3, eq. 5)"
    formula = (
        "max(-A r, -A clip(r, 1 - {clip_range_low|clip_range}, 1 + {clip_range_high|clip_range}))"
        "\nwhere A < 0 at most -A {clip_ratio_c} (dual clip)"
        "\nr = exp(logprob - old_logprob)"
        "\n?enable_sequence_masking where A < 0, 0 in responses whose mean of old_logprob - logprob is above "
        "{delta_sequence_masking}"
        "\n?fallback_to_policy_gradient old_logprob = sg(logprob): r is 1 and only its gradient counts"
    )
    ranges = CLIP_RANGE | {"clip_ratio_c": "(1, inf]"}
    in_bypass_mode = "bypass_mode"
    names_in_bypass_mode = {
        "clip_range": "clip_ratio",
        "clip_range_low": "clip_ratio_low",
        "clip_range_high": "clip_ratio_high",
        "clip_ratio_c": "clip_ratio_c",
        "loss_agg_mode": "loss_agg_mode",
    }
    zero_advantage_is_zero_loss = True

    def __init__(
        self,
        backend: str = "verl",
        clip_range: float | None = 0.2,
        clip_range_low: float | None = None,
        clip_range_high: float | None = None,
        clip_ratio_c: float = 3.0,
        loss_agg_mode: str = "token-mean",
        enable_sequence_masking: bool = False,
        delta_sequence_masking: float = 0.1,
        fallback_to_policy_gradient: bool = False,
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        bounds = clip_bounds(clip_range, clip_range_low, clip_range_high, name="clip_range")
        if clip_ratio_c <= 1.0:
            raise ValueError(f"clip_ratio_c must be above 1, got {clip_ratio_c}")
        self.clip_range_low, self.clip_range_high = bounds
        self.clip_ratio_c = clip_ratio_c
        self.enable_sequence_masking = enable_sequence_masking
        self.delta_sequence_masking = delta_sequence_masking
        self.fallback_to_policy_gradient = fallback_to_policy_gradient

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

        The metrics are `pg_loss`, `pg_clipfrac`, `pg_clipfrac_lower` and `ppo_kl`.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        if self.fallback_to_policy_gradient:
            old_logprob = logprob.detach()
        log_ratio = clamped_log_ratio(logprob, old_logprob)
        ratio = log_ratio.exp()
        plain = -advantages * ratio
        clipped = -advantages * ratio.clamp(1.0 - self.clip_range_low, 1.0 + self.clip_range_high)
        upper = torch.maximum(plain, clipped)
        bound = -advantages * self.clip_ratio_c
        losses = torch.where(advantages < 0, torch.minimum(upper, bound), upper)
        is_clipped, is_dual = clipped > plain, (upper > bound) & (advantages < 0)
        note_clipping(ratio, clipped=is_clipped | is_beyond(logprob - old_logprob), dual=is_dual)
        metrics = {
            "pg_clipfrac": masked_mean(is_clipped.to(losses.dtype), action_mask).item(),
            "pg_clipfrac_lower": masked_mean(is_dual.to(losses.dtype), action_mask).item(),
            "ppo_kl": masked_mean(-log_ratio.detach(), action_mask).item(),
        }
        if self.enable_sequence_masking:
            losses = self._mask_sequences(losses, log_ratio.detach(), action_mask, advantages, metrics)
        loss = self.aggregate(losses, action_mask, rollout_is_weights)
        return loss, {"pg_loss": loss.item()} | metrics

    def _mask_sequences(
        self, losses: Tensor, log_ratio: Tensor, action_mask: Tensor, advantages: Tensor, metrics: dict[str, float]
    ) -> Tensor:
        divergence = masked_mean(-log_ratio, action_mask, -1)
        far = (advantages < 0) & (divergence > self.delta_sequence_masking).unsqueeze(-1)
        note_clipping(masked=far)
        metrics["seq_mask/masked_tokens"] = masked_mean(far.to(losses.dtype), action_mask).item()
        metrics["seq_mask/mean_sequence_kl"] = divergence.mean().item()
        return torch.where(far, torch.zeros_like(losses), losses)


@POLICY_LOSS_FN.register_module("verl_vanilla")
class VerlVanillaPolicyLossFn(PPOPolicyLossFn):
    """The clipped surrogate loss with dual clip, by veRL's convention.

    The convention is that of aggregation and names.

    Args:
        backend: see `PolicyLossFn`.
        clip_ratio: both bounds of the ratio, as distances from 1.
        clip_ratio_low: lower bound, if it differs.
        clip_ratio_high: upper bound, if it differs.
        clip_ratio_c: dual clip constant c > 1.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: no clip ratio, a negative one, or `clip_ratio_c` not above 1.
    """

    summary = "as ppo"
    formula = (
        "max(-A r, -A clip(r, 1 - {clip_ratio_low|clip_ratio}, 1 + {clip_ratio_high|clip_ratio}))"
        "\nwhere A < 0 at most -A {clip_ratio_c} (dual clip)"
        "\nr = exp(logprob - old_logprob)"
    )
    ranges = CLIP_RATIO | {"clip_ratio_c": "(1, inf]"}
    in_bypass_mode = "bypass_mode"
    names_in_bypass_mode = {
        name: name for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode")
    }
    convention = "verl"

    def __init__(
        self,
        backend: str = "verl",
        clip_ratio: float | None = 0.2,
        clip_ratio_low: float | None = None,
        clip_ratio_high: float | None = None,
        clip_ratio_c: float = 3.0,
        loss_agg_mode: str = "token-mean",
    ) -> None:
        low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, name="clip_ratio")
        super().__init__(backend, None, low, high, clip_ratio_c, loss_agg_mode)
