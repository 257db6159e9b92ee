"""Rollout correction inside the loss.

This is for runs that take the rollout's log-probabilities as the old ones.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.gpg import VerlGPGPolicyLossFn
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn
from trinity.algorithm.policy_loss_fn.ppo import VerlVanillaPolicyLossFn
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RATIO
from trinity.algorithm.rollout_correction import compute_rollout_correction
from trinity.utils.correction_options import LOSS_TYPES


@POLICY_LOSS_FN.register_module("verl_bypass_mode")
@POLICY_LOSS_FN.register_module("bypass_mode")
class VerlBypassModePolicyLossFn(PolicyLossFn):
    """A policy loss on the tokens that rejection keeps.

    The loss is the clipped surrogate, or REINFORCE with importance weights.

    `old_logprob` holds the rollout's log-probabilities; weights and rejection come from logprob - old_logprob without
    its gradient, see `compute_rollout_correction`. `ppo_clip` takes no weights: its ratio corrects already.
    Rejected tokens do not count in the divisors of the aggregation either, unless `counted_mask` says which tokens do.

    Args:
        backend: see `PolicyLossFn`.
        loss_type: `ppo_clip` for `VerlVanillaPolicyLossFn`, `reinforce` for -A w logprob.
        rollout_is: see `compute_rollout_correction`, also for the next four.
        rollout_is_threshold: bound of the weights.
        rollout_is_batch_normalize: divide the weights by their mean.
        rollout_rs: criterion that rejects tokens or responses.
        rollout_rs_threshold: bounds of the rejection.
        clip_ratio: see `VerlVanillaPolicyLossFn`, also for the next three.
        clip_ratio_low: lower bound of the ratio.
        clip_ratio_high: upper bound of the ratio.
        clip_ratio_c: dual clip constant.
        loss_agg_mode: see `agg_loss`.

    Raises:
        ValueError: an unknown `loss_type`, or an argument that the loss or the correction refuses.
    """

    of_rollout_logprobs = True
    summary = "rollout correction inside the loss"
    formula = (
        "= the loss below over the tokens that the rejection keeps"
        "\n?loss_type=ppo_clip max(-A r, -A clip(r, 1 - {clip_ratio_low|clip_ratio}, 1 + "
        "{clip_ratio_high|clip_ratio})), where A < 0 at most -A {clip_ratio_c}, by {loss_agg_mode}"
        "\n?loss_type=reinforce -A w logprob, by {loss_agg_mode}"
        "\nr = exp(logprob - old_logprob)"
        "\n?rollout_is importance weights w by {rollout_is}, bound {rollout_is_threshold}"
        "\n?rollout_rs rejection by {rollout_rs}, bounds {rollout_rs_threshold}"
    )
    ranges = CLIP_RATIO | {"loss_type": LOSS_TYPES, "clip_ratio_c": "(1, inf]"}
    convention = "verl"

    def __init__(
        self,
        backend: str = "verl",
        loss_type: str = "ppo_clip",
        rollout_is: str | None = None,
        rollout_is_threshold: float | str = 2.0,
        rollout_is_batch_normalize: bool = False,
        rollout_rs: str | None = None,
        rollout_rs_threshold: float | str | None = None,
        clip_ratio: float | None = 0.2,
        clip_ratio_low: float | None = None,
        clip_ratio_high: float | None = None,
        clip_ratio_c: float = 3.0,
        loss_agg_mode: str = "token-mean",
    ) -> None:
        super().__init__(backend)
        if loss_type not in LOSS_TYPES:
            raise ValueError(f"loss_type must be one of {', '.join(LOSS_TYPES)}, got {loss_type!r}")
        self.clipped = VerlVanillaPolicyLossFn(
            backend, clip_ratio, clip_ratio_low, clip_ratio_high, clip_ratio_c, loss_agg_mode
        )
        self.reinforce = VerlGPGPolicyLossFn(backend, loss_agg_mode)
        self.loss_type = loss_type
        self.loss_agg_mode = loss_agg_mode
        self.rollout_is = rollout_is
        self.rollout_is_threshold = rollout_is_threshold
        self.rollout_is_batch_normalize = rollout_is_batch_normalize
        self.rollout_rs = rollout_rs
        self.rollout_rs_threshold = rollout_rs_threshold
        # An option that does not exist is refused now, not in the first training step.
        nothing = torch.zeros(1, 1)
        self._correct(nothing, nothing, nothing.bool())

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        counted_mask: Bool[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics of the loss and of the correction.

        The latter are `rollout_corr/...`.
        """
        weights, kept, metrics = self._correct(logprob, old_logprob, action_mask)
        note_clipping(rejected=action_mask & ~kept)
        if self.loss_type == "reinforce":
            loss, of_loss = self.reinforce(logprob, kept, advantages, weights)
        else:
            loss, of_loss = self.clipped(logprob, old_logprob, kept, advantages)
        share = 1.0 if counted_mask is None else self._share(kept, counted_mask)
        return loss * share, metrics | of_loss | {"pg_loss": loss.item() * share}

    def _share(self, kept: Tensor, counted_mask: Tensor) -> float:
        """Return the kept part of what the aggregation divides by."""
        if self.loss_agg_mode == "token-sum":
            return 1.0
        if self.loss_agg_mode != "token-mean":
            kept, counted_mask = kept.any(-1), counted_mask.any(-1)
        return float(kept.sum()) / max(float(counted_mask.sum()), 1.0)

    def _correct(
        self, logprob: Tensor, old_logprob: Tensor, action_mask: Tensor
    ) -> tuple[Tensor | None, Tensor, dict[str, float]]:
        return compute_rollout_correction(
            logprob,
            old_logprob,
            action_mask,
            self.rollout_is,
            self.rollout_is_threshold,
            self.rollout_is_batch_normalize,
            self.rollout_rs,
            self.rollout_rs_threshold,
        )
