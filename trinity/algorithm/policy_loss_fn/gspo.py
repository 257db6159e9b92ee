"""Group sequence policy optimisation, by Trinity's and veRL's convention.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.log_ratio import bounded
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RANGE, CLIP_RATIO, clip_bounds, sequence_log_ratio
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("gspo")
class GSPOPolicyLossFn(TokenLossFn):
    """PPO's loss with the length-normalised ratio of the response.

        max(-A s, -A clip(s, 1 - low, 1 + high)),   s = exp(mean over tokens of logprob - old_logprob)

    Each token has its own gradient: the token form of arXiv:2507.18071v2, eq. 13 and 14; eq. 5 is the case of one
    advantage per response. ln s is clamped to +-20.

    Args:
        backend: see `PolicyLossFn`.
        clip_range: both bounds of the ratio, as distances from 1.
        clip_range_low: lower bound; 3e-4 where neither it nor `clip_range` is given (the paper's).
        clip_range_high: upper bound; 4e-4 likewise.
        loss_agg_mode: see `aggregate_loss`.

    Raises:
        ValueError: a negative bound.
    """

    summary = (
        "clipped ratio of the whole response (arXiv:2507.18071v2, eq. 13 and 14); clip_range_low 3e-4 and "
        "clip_range_high 4e-4 if not given"
    )
    formula = (
        "max(-A s, -A clip(s, 1 - {clip_range_low|clip_range|0.0003}, 1 + {clip_range_high|clip_range|0.0004}))"
        "\ns = exp(mean over the response's tokens of logprob - old_logprob), each token with its own gradient"
    )
    ranges = CLIP_RANGE
    zero_advantage_is_zero_loss = True
    max_log_ratio: float | None = None

    def __init__(
        self,
        backend: str = "verl",
        clip_range: float | None = None,
        clip_range_low: float | None = None,
        clip_range_high: float | None = None,
        loss_agg_mode: str = "seq-mean-token-mean",
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        low = 3e-4 if clip_range is None and clip_range_low is None else clip_range_low
        high = 4e-4 if clip_range is None and clip_range_high is None else clip_range_high
        self.clip_range_low, self.clip_range_high = clip_bounds(clip_range, low, high, name="clip_range")

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

        The metrics are `pg_loss`, `pg_clipfrac`, `ppo_kl` and `ppo_kl_seq`.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        of_sequence = sequence_log_ratio(logprob, old_logprob, action_mask).detach()
        unbounded = logprob - logprob.detach() + of_sequence
        log_ratio = bounded(unbounded)
        if self.max_log_ratio is not None:
            log_ratio = log_ratio.clamp(max=self.max_log_ratio)
        ratio = log_ratio.exp()
        plain = -advantages * ratio
        clipped = -advantages * ratio.clamp(1.0 - self.clip_range_low, 1.0 + self.clip_range_high)
        is_clipped = clipped > plain
        note_clipping(ratio, clipped=is_clipped | (log_ratio != unbounded))
        loss = self.aggregate(torch.maximum(plain, clipped), action_mask, rollout_is_weights)
        metrics = {
            "pg_loss": loss.item(),
            "pg_clipfrac": masked_mean(is_clipped.to(loss.dtype), action_mask).item(),
            "ppo_kl": masked_mean((old_logprob - logprob).detach(), action_mask).item(),
            "ppo_kl_seq": -of_sequence.mean().item(),
        }
        return loss, metrics


@POLICY_LOSS_FN.register_module("verl_gspo")
class VerlGSPOPolicyLossFn(GSPOPolicyLossFn):
    """Group sequence policy optimisation by veRL's convention.

    The convention is that of aggregation and names.

    The logarithm of the ratio is at most 10; no gradient beyond.

    Args:
        backend: see `PolicyLossFn`.
        clip_ratio: both bounds of the ratio, as distances from 1.
        clip_ratio_low: lower bound, if it differs.
        clip_ratio_high: upper bound, if it differs.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: no clip ratio, or a negative one.
    """

    summary = "as gspo, the ratio at most exp(10)"
    formula = (
        "max(-A s, -A clip(s, 1 - {clip_ratio_low|clip_ratio}, 1 + {clip_ratio_high|clip_ratio}))"
        "\ns = exp(mean over the response's tokens of logprob - old_logprob), each token with its own gradient"
        "\nln s is at most 10"
    )
    ranges = CLIP_RATIO
    convention = "verl"
    max_log_ratio = 10.0

    def __init__(
        self,
        backend: str = "verl",
        clip_ratio: float | None = 0.2,
        clip_ratio_low: float | None = None,
        clip_ratio_high: float | None = None,
        loss_agg_mode: str = "seq-mean-token-mean",
    ) -> None:
        low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, name="clip_ratio")
        super().__init__(backend, None, low, high, loss_agg_mode)
