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

from trinity.algorithm import KL_FN
from trinity.algorithm.kl_fn.kl_fn import KLFn
from trinity.algorithm.log_ratio import bounded

MAX_LOW_VAR_KL = 10.0
MAX_IMPORTANCE_RATIO = 2.0
_SOURCE = 'Schulman, "Approximating KL Divergence" (2020)'
_ADAPTIVE = (
    "\n?adaptive after each step the coefficient *= 1 + clip(KL / {target_kl} - 1, -0.2, 0.2) rows / {horizon} "
    "(arXiv:1909.08593)"
)
_D_ADAPTIVE = "\nd = logprob - ref_logprob" + _ADAPTIVE


@KL_FN.register_module("none")
class NoneKLFn(KLFn):
    """No divergence: 0."""

    summary = "no KL term"
    formula = "0"
    needs = frozenset()

    def calculate_kl(
        self, logprob: Tensor, ref_logprob: Tensor | None = None, old_logprob: Tensor | None = None
    ) -> Tensor:
        """Return zeros [B, T] through which no gradient flows."""
        return torch.zeros_like(logprob) * logprob.detach()

    def calculate_kl_loss(
        self, logprob: Float[Tensor, "..."], *args: Any, **kwargs: Any
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return 0 and no metrics; a reference model is not needed."""
        return torch.zeros((), dtype=logprob.dtype, device=logprob.device), {}


@KL_FN.register_module("k1")
@KL_FN.register_module("kl", doc="veRL's name of k1")
class K1KLFn(KLFn):
    """d: unbiased, of high variance, negative at times."""

    summary = "d"
    formula = "d" + _D_ADAPTIVE
    citation = _SOURCE

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return d, [B, T]."""
        return logprob - ref_logprob


@KL_FN.register_module("k2")
@KL_FN.register_module("mse", doc="veRL's name of k2")
@KL_FN.register_module("mse+", doc="k2, whose gradient it already has")
@KL_FN.register_module("k2+", doc="k2, whose gradient it already has")
class K2KLFn(KLFn):
    """d^2 / 2: biased, of low variance.

    Its gradient is that of the divergence.
    """

    summary = "d^2 / 2"
    formula = "d^2 / 2" + _D_ADAPTIVE
    citation = _SOURCE

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return d^2 / 2, [B, T]."""
        return 0.5 * (logprob - ref_logprob).square()


@KL_FN.register_module("k3")
class K3KLFn(KLFn):
    """exp(-d) - 1 + d: unbiased, of low variance, never negative.

    It is not bounded, see `LowVarKLFn`.
    """

    summary = "the estimate that GRPO uses (arXiv:2402.03300v3, eq. 4)"
    formula = "exp(-d) - 1 + d" + _D_ADAPTIVE
    citation = _SOURCE

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return exp(-d) - 1 + d, [B, T]."""
        negative = ref_logprob - logprob
        return negative.exp() - 1.0 - negative


@KL_FN.register_module("low_var_kl")
class LowVarKLFn(KLFn):
    """k3 with the log-ratio clamped to +-20 and the value to +-10."""

    summary = "k3 (arXiv:2402.03300v3, eq. 4), clamped"
    formula = "min(exp(-d) - 1 + d, 10), d clamped to +-20" + _D_ADAPTIVE
    citation = _SOURCE

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return the clamped k3, [B, T]."""
        negative = bounded(ref_logprob - logprob)
        return (negative.exp() - 1.0 - negative).clamp(-MAX_LOW_VAR_KL, MAX_LOW_VAR_KL)


@KL_FN.register_module("abs")
class AbsKLFn(KLFn):
    """|d|."""

    summary = "|d|"
    formula = "|d|" + _D_ADAPTIVE
    citation = _SOURCE

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return |d|, [B, T]."""
        return (logprob - ref_logprob).abs()


@KL_FN.register_module("corrected_k3")
class CorrectedK3KLFn(KLFn):
    """k3 times the importance ratio, clamped to [0, 2].

    The ratio is exp(logprob - old_logprob).
    """

    summary = "k3 times the clamped importance ratio"
    formula = "clip(exp(logprob - old_logprob), 0, 2) (exp(-d) - 1 + d)" + _D_ADAPTIVE
    citation = _SOURCE
    needs = frozenset({"ref_logprob", "old_logprob"})

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return the corrected k3 [B, T]; plain k3 without `old_logprob`."""
        negative = ref_logprob - logprob
        k3 = negative.exp() - 1.0 - negative
        if old_logprob is None:
            return k3
        return bounded(logprob - old_logprob).exp().clamp(0.0, MAX_IMPORTANCE_RATIO) * k3


@KL_FN.register_module("full")
class FullKLFn(KLFn):
    """sum over the vocabulary of p (ln p - ln q): the exact divergence.

    Where we differ: verl 0.9.1 names it, but does not implement it.
    """

    summary = "sum of p (ln p - ln q) over the vocabulary"
    needs = frozenset({"full_logprob", "full_ref_logprob"})
    formula = "sum over the vocabulary of p (ln p - ln q), q the reference's" + _ADAPTIVE
    of_distributions = True

    def calculate_kl(
        self,
        logprob: Float[Tensor, "B T V"],
        ref_logprob: Float[Tensor, "B T V"],
        old_logprob: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return the divergence of two distributions over the vocabulary.

        The log-probabilities are normalised; p = 0 adds 0.
        """
        difference = torch.where(logprob == -torch.inf, torch.zeros_like(logprob), logprob - ref_logprob)
        return (logprob.exp() * difference).sum(-1)


class _StraightThrough(KLFn):
    """The value of another estimator, with the gradient of k2."""

    def calculate_kl(self, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None) -> Tensor:
        """Return the estimator's value, [B, T]; the gradient is d."""
        k2 = 0.5 * (logprob - ref_logprob).square()
        value = super().calculate_kl(logprob, ref_logprob, old_logprob)  # type: ignore[safe-super]
        return k2 - k2.detach() + value.detach()


@KL_FN.register_module("k1+")
@KL_FN.register_module("kl+")
class StraightThroughK1KLFn(_StraightThrough, K1KLFn):
    """`k1+` and `kl+`: the value of k1, the gradient of k2."""

    summary = "value of k1, gradient of k2"
    formula = "sg(d) with the gradient of d^2 / 2" + _D_ADAPTIVE
    citation = _SOURCE


@KL_FN.register_module("k3+")
@KL_FN.register_module("low_var_kl+")
class StraightThroughLowVarKLFn(_StraightThrough, LowVarKLFn):
    """The value of the clamped k3 with the gradient of k2.

    Names: `low_var_kl+` and `k3+`.
    """

    summary = "value of the clamped k3, gradient of k2"
    formula = "sg(min(exp(-d) - 1 + d, 10), d clamped to +-20) with the gradient of d^2 / 2" + _D_ADAPTIVE
    citation = _SOURCE


@KL_FN.register_module("abs+")
class StraightThroughAbsKLFn(_StraightThrough, AbsKLFn):
    """`abs+`: the value of |d|, the gradient of k2."""

    summary = "value of |d|, gradient of k2"
    formula = "sg(|d|) with the gradient of d^2 / 2" + _D_ADAPTIVE
    citation = _SOURCE
