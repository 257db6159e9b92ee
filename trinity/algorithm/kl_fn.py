"""Estimates of the divergence from the reference model, per token.

Dimension key: B = responses, T = response positions. d = logprob - ref_logprob. k1, k2 and k3 are the estimators of
Schulman, "Approximating KL Divergence" (2020).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.utils import aggregate_loss

MAX_LOG_RATIO = 20.0
MAX_LOW_VAR_KL = 10.0
MAX_IMPORTANCE_RATIO = 2.0


class KLFn(ABC):
    """A divergence per token and the coefficient that weighs it in the loss.

    Args:
        adaptive: move `kl_coef` towards `target_kl` (Ziegler et al., arXiv:1909.08593, section 2.2).
        kl_coef: coefficient, >= 0.
        target_kl: divergence (nats a token) that the adaptive coefficient aims at.
        horizon: number of samples over which the adaptive coefficient moves by a factor of at most 1.2.

    Raises:
        ValueError: adaptive without a positive `target_kl` and `horizon`.
    """

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
        self.adaptive = adaptive
        self.kl_coef = kl_coef
        self.target_kl = target_kl
        self.horizon = horizon

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
        logprob: Float[Tensor, "B T"],
        ref_logprob: Float[Tensor, "B T"],
        response_mask: Bool[Tensor, "B T"] | None = None,
        loss_agg_mode: str = "token-mean",
        old_logprob: Float[Tensor, "B T"] | None = None,
        action_mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return `kl_coef` times the aggregated divergence, and the metrics `kl_loss` and `kl_coef`.

        Raises:
            ValueError: neither `response_mask` nor its other name `action_mask` is given.
        """
        mask = response_mask if response_mask is not None else action_mask
        if mask is None:
            raise ValueError("calculate_kl_loss needs response_mask (or action_mask), got neither")
        kl_loss = aggregate_loss(self.calculate_kl(logprob, ref_logprob, old_logprob), mask, loss_agg_mode)
        return kl_loss * self.kl_coef, {"kl_loss": kl_loss.item(), "kl_coef": self.kl_coef}

    def update_kl_coef(self, current_kl: float, batch_size: int) -> None:
        """Move an adaptive coefficient after a batch of `batch_size` samples with mean divergence `current_kl`."""
        if self.adaptive:
            assert self.target_kl is not None and self.horizon is not None, "checked by the constructor"
            error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
            self.kl_coef *= 1.0 + error * batch_size / self.horizon

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return the constructor's arguments and defaults."""
        return {"adaptive": False, "kl_coef": 0.001, "target_kl": None, "horizon": None}


class NoneKLFn(KLFn):
    """No divergence: 0."""

    def calculate_kl(
        self, logprob: Tensor, ref_logprob: Tensor | None = None, old_logprob: Tensor | None = None
    ) -> Tensor:
        """Return zeros through which no gradient flows."""
        return torch.zeros_like(logprob) * logprob.detach()

    def calculate_kl_loss(self, logprob: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, float]]:
        """Return 0 and no metrics; a reference model is not needed."""
        return torch.zeros((), dtype=logprob.dtype, device=logprob.device), {}


class K1KLFn(KLFn):
    """d: unbiased, of high variance, negative at times."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return d."""
        return logprob - ref_logprob


class K2KLFn(KLFn):
    """d^2 / 2: biased, of low variance; its gradient is that of the divergence."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return d^2 / 2."""
        return 0.5 * (logprob - ref_logprob).square()


class K3KLFn(KLFn):
    """exp(-d) - 1 + d: unbiased, of low variance, never negative."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return exp(-d) - 1 + d."""
        negative = ref_logprob - logprob
        return negative.exp() - 1.0 - negative


class LowVarKLFn(KLFn):
    """k3 with the log-ratio clamped to +-20 and the value to +-10."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return the clamped k3."""
        negative = (ref_logprob - logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return (negative.exp() - 1.0 - negative).clamp(-MAX_LOW_VAR_KL, MAX_LOW_VAR_KL)


class AbsKLFn(KLFn):
    """|d|."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return |d|."""
        return (logprob - ref_logprob).abs()


class CorrectedK3KLFn(KLFn):
    """k3 times the importance ratio exp(logprob - old_logprob), clamped to [0, 2]."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return the corrected k3; plain k3 where `old_logprob` is not given."""
        negative = ref_logprob - logprob
        k3 = negative.exp() - 1.0 - negative
        if old_logprob is None:
            return k3
        return (logprob - old_logprob).exp().clamp(0.0, MAX_IMPORTANCE_RATIO) * k3
