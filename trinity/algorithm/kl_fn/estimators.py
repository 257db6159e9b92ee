"""Estimates of the divergence from the reference model, per token.

Dimension key: B = responses, T = response positions, V = vocabulary. d = logprob - ref_logprob. k1, k2 and k3 are the
estimators of Schulman, "Approximating KL Divergence" (2020). A straight-through form, `<name>+`, has the value of one
estimator and the gradient of k2, which is that of the divergence itself. Names with the same maths share a class:
`k1` and `kl`; `k1+` and `kl+`; `k2`, `mse`, `k2+` and `mse+`; `low_var_kl+` and `k3+`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trinity.algorithm.kl_fn.kl_fn import KLFn
from trinity.algorithm.log_ratio import bounded

MAX_LOW_VAR_KL = 10.0
MAX_IMPORTANCE_RATIO = 2.0


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
    """exp(-d) - 1 + d: unbiased, of low variance, never negative; not bounded, see `LowVarKLFn`."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return exp(-d) - 1 + d."""
        negative = ref_logprob - logprob
        return negative.exp() - 1.0 - negative


class LowVarKLFn(KLFn):
    """k3 with the log-ratio clamped to +-20 and the value to +-10."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return the clamped k3."""
        negative = bounded(ref_logprob - logprob)
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
        return bounded(logprob - old_logprob).exp().clamp(0.0, MAX_IMPORTANCE_RATIO) * k3


class FullKLFn(KLFn):
    """sum over the vocabulary of p (ln p - ln q): the divergence itself, of whole distributions.

    Where we differ: verl 0.9.1 names it, but does not implement it.
    """

    of_distributions = True

    def calculate_kl(
        self,
        logprob: Float[Tensor, "B T V"],
        ref_logprob: Float[Tensor, "B T V"],
        old_logprob: Tensor | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return the divergence of normalised log-probabilities over the vocabulary; p = 0 adds 0."""
        difference = torch.where(logprob == -torch.inf, torch.zeros_like(logprob), logprob - ref_logprob)
        return (logprob.exp() * difference).sum(-1)


class _StraightThrough(KLFn):
    """The value of another estimator, with the gradient of k2."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return the estimator's value; the gradient is d."""
        k2 = 0.5 * (logprob - ref_logprob).square()
        value = super().calculate_kl(logprob, ref_logprob, old_logprob)  # type: ignore[safe-super]
        return k2 - k2.detach() + value.detach()


class StraightThroughK1KLFn(_StraightThrough, K1KLFn):
    """`k1+` and `kl+`: the value of k1, the gradient of k2."""


class StraightThroughLowVarKLFn(_StraightThrough, LowVarKLFn):
    """`low_var_kl+` and `k3+`: the value of the clamped k3, the gradient of k2."""


class StraightThroughAbsKLFn(_StraightThrough, AbsKLFn):
    """`abs+`: the value of |d|, the gradient of k2."""
