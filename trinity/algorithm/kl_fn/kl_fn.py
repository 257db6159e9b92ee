"""The base of divergences from the reference model.

A divergence is a loss term or a penalty in the reward, with a coefficient.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.statistics import masked_zero
from trinity.algorithm.utils import aggregate_loss, masked_mean
from trinity.utils.declaration import Declared


class KLFn(Declared, ABC):
    """A divergence per token and its coefficient.

    Attributes:
        needs: the log-probabilities that it reads; none for no KL term.
        of_distributions: it compares whole distributions over the vocabulary, not the sampled tokens only; the trainer
            then computes the divergence and calls `loss_of` or `lowered`.

    Args:
        adaptive: move `kl_coef` towards `target_kl` (Ziegler et al., arXiv:1909.08593, section 2.2).
        kl_coef: coefficient, finite and >= 0.
        target_kl: divergence (nats per token) that the adaptive coefficient aims at.
        horizon: number of samples over which the adaptive coefficient moves by a factor of at most 1.2.

    Raises:
        ValueError: adaptive without a positive `target_kl` and `horizon`, or a `kl_coef` outside its range.
    """

    kind = "kl_fn"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logprob"})
    ranges: ClassVar[Mapping[str, str]] = {"kl_coef": "[0, inf)"}
    needed_if: ClassVar[Mapping[str, str]] = {"target_kl": "adaptive", "horizon": "adaptive"}
    of_distributions = False

    def __init__(
        self,
        adaptive: bool = False,
        kl_coef: float = 0.001,
        target_kl: float | None = None,
        horizon: float | None = None,
    ) -> None:
        if adaptive and not (target_kl and horizon and target_kl > 0 and horizon > 0):
            raise ValueError(
                f"an adaptive KL coefficient needs target_kl > 0 and horizon > 0, got {target_kl} and {horizon}"
            )
        if not (math.isfinite(kl_coef) and kl_coef >= 0):
            raise ValueError(f"kl_coef must be finite and >= 0, got {kl_coef}")
        self.adaptive = adaptive
        self.kl_coef = kl_coef
        self.target_kl = target_kl
        self.horizon = horizon

    @property
    def is_in_force(self) -> bool:
        """Whether it has inputs and a coefficient that is or may become nonzero."""
        return bool(self.needs) and (self.kl_coef != 0 or self.adaptive)

    @abstractmethod
    def calculate_kl(
        self,
        logprob: Float[Tensor, "B T"],
        ref_logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return the divergence per token (nats)."""

    def calculate_kl_loss(
        self,
        logprob: Float[Tensor, "B T *V"],
        ref_logprob: Float[Tensor, "B T *V"],
        response_mask: Bool[Tensor, "B T"] | None = None,
        loss_agg_mode: str = "token-mean",
        old_logprob: Float[Tensor, "B T"] | None = None,
        action_mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return `kl_coef` times the aggregated divergence, and metrics.

        The metrics are `kl_loss` and `kl_coef`.

        The log-probabilities are those of the tokens ([B, T]), for `full` those of the vocabulary ([B, T, V]).

        Raises:
            ValueError: neither `response_mask` nor its other name `action_mask` is given.
        """
        mask = response_mask if response_mask is not None else action_mask
        if mask is None:
            raise ValueError("calculate_kl_loss needs response_mask (or action_mask), got neither")
        # Not only the value: where a masked log-ratio is huge, exp overflows and 0 times its gradient would be NaN.
        counted = mask.reshape(*mask.shape, *(1,) * (logprob.dim() - mask.dim()))
        policy, reference = torch.where(counted, logprob, 0.0), torch.where(counted, ref_logprob, 0.0)
        old = None if old_logprob is None else torch.where(mask, old_logprob, 0.0)
        return self.loss_of(self.calculate_kl(policy, reference, old), mask, loss_agg_mode)

    def loss_of(
        self, divergence: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], loss_agg_mode: str = "token-mean"
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return `kl_coef` times the tokens' aggregated divergence, and metrics.

        The metrics are `kl_loss` and `kl_coef`. An adaptive coefficient adds `kl_mean`, the mean over the counted
        tokens (nats per token) whatever the aggregation: `target_kl` is compared with it.
        """
        kl_loss = aggregate_loss(divergence, mask, loss_agg_mode)
        metrics = {"kl_loss": kl_loss.item(), "kl_coef": self.kl_coef}
        if self.adaptive:
            metrics["kl_mean"] = masked_mean(divergence, mask).item()
        return kl_loss * self.kl_coef, metrics

    def apply_kl_penalty_to_reward(
        self,
        token_level_scores: Float[Tensor, "B T"],
        *,
        old_logprob: Float[Tensor, "B T"],
        ref_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
    ) -> tuple[Float[Tensor, "B T"], dict[str, float]]:
        """Return the token rewards with the KL penalty, and metrics.

        A reward is the score minus `kl_coef` times the divergence. An adaptive coefficient is updated afterwards. The
        metrics are `kl`, the mean over all responses of their mean divergence (nats per token; a response without
        counted tokens adds 0), and `kl_coef`, the coefficient that was applied. No gradient flows.
        """
        with torch.no_grad():
            return self.lowered(token_level_scores, self.calculate_kl(old_logprob, ref_logprob), action_mask)

    def lowered(
        self,
        token_level_scores: Float[Tensor, "B T"],
        divergence: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
    ) -> tuple[Float[Tensor, "B T"], dict[str, float]]:
        """Same as `apply_kl_penalty_to_reward`, from a given divergence."""
        with torch.no_grad():
            divergence = masked_zero(divergence, action_mask)
            rewards = masked_zero(token_level_scores, action_mask) - self.kl_coef * divergence
            current_kl = masked_mean(divergence, action_mask, -1).mean().item() if len(divergence) else 0.0
        metrics = {"kl": current_kl, "kl_coef": self.kl_coef}
        self.update_kl_coef(current_kl, len(divergence))
        return rewards, metrics

    def update_kl_coef(self, current_kl: float, batch_size: int) -> None:
        """Update an adaptive coefficient after a batch.

            kl_coef *= 1 + clip(current_kl / target_kl - 1, -0.2, 0.2) batch_size / horizon

        `current_kl` is the mean divergence of the `batch_size` samples. A fixed coefficient stays. A divergence that is
        not finite is ignored: the optimizer step that it comes from is skipped.
        """
        if self.adaptive and math.isfinite(current_kl):
            assert self.target_kl is not None and self.horizon is not None, "checked by the constructor"
            error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
            self.kl_coef *= 1.0 + error * batch_size / self.horizon

    def state_dict(self) -> dict[str, Any]:
        """Return the coefficient for a checkpoint, if it is adaptive."""
        return {"kl_coef": self.kl_coef} if self.adaptive else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the coefficient of a checkpoint; a fixed one stays as configured."""
        if self.adaptive:
            self.kl_coef = float(state["kl_coef"])
