"""Divergences from the reference model; a plugin adds its own with `@KL_FN.register_module("name")`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.utils.registry import Entry

if TYPE_CHECKING:
    from trinity.algorithm.kl_fn.kl_fn import KLFn as KLFn

_PLACE = "trinity.algorithm.kl_fn.estimators"
_ARGS: dict[str, Any] = {"adaptive": False, "kl_coef": 0.001, "target_kl": None, "horizon": None}


_SOURCE = 'Schulman, "Approximating KL Divergence" (2020)'
_D = "\nd = logprob - ref_logprob"
_ADAPTIVE = (
    "\n?adaptive after each step the coefficient *= 1 + clip(KL / {target_kl} - 1, -0.2, 0.2) rows / {horizon} "
    "(arXiv:1909.08593)"
)
_K3 = "exp(-d) - 1 + d"
_CLAMPED = "min(exp(-d) - 1 + d, 10), d clamped to +-20"
_OF_K2 = "sg({}) with the gradient of d^2 / 2"


def _entry(name: str, doc: str, formula: str, *needs: str) -> Entry:
    text = f"{formula}{_D if 'ref_logprob' in needs else ''}{_ADAPTIVE}" if needs else formula
    return Entry(
        f"{_PLACE}:{name}",
        args=_ARGS,
        needs=frozenset(needs),
        doc=doc,
        formula=text,
        source=_SOURCE if "ref_logprob" in needs else "",
    )


KL_CONTENTS: dict[str, Entry] = {
    "none": _entry("NoneKLFn", "no KL term", "0"),
    "k1": _entry("K1KLFn", "d", "d", "ref_logprob"),
    "k2": _entry("K2KLFn", "d^2 / 2", "d^2 / 2", "ref_logprob"),
    "k3": _entry("K3KLFn", "the estimate that GRPO takes (arXiv:2402.03300v3, eq. 4)", _K3, "ref_logprob"),
    "low_var_kl": _entry("LowVarKLFn", "k3 (arXiv:2402.03300v3, eq. 4), clamped", _CLAMPED, "ref_logprob"),
    "abs": _entry("AbsKLFn", "|d|", "|d|", "ref_logprob"),
    "corrected_k3": _entry(
        "CorrectedK3KLFn",
        "k3 times the clamped importance ratio",
        f"clip(exp(logprob - old_logprob), 0, 2) ({_K3})",
        "ref_logprob",
        "old_logprob",
    ),
    "kl": _entry("K1KLFn", "veRL's name of k1", "d", "ref_logprob"),
    "mse": _entry("K2KLFn", "veRL's name of k2", "d^2 / 2", "ref_logprob"),
    "full": _entry(
        "FullKLFn",
        "sum of p (ln p - ln q) over the vocabulary",
        "sum over the vocabulary of p (ln p - ln q), q the reference's",
        "full_logprob",
        "full_ref_logprob",
    ),
    "k1+": _entry("StraightThroughK1KLFn", "value of k1, gradient of k2", _OF_K2.format("d"), "ref_logprob"),
    "k3+": _entry(
        "StraightThroughLowVarKLFn",
        "value of the clamped k3, gradient of k2",
        _OF_K2.format(_CLAMPED),
        "ref_logprob",
    ),
    "abs+": _entry("StraightThroughAbsKLFn", "value of |d|, gradient of k2", _OF_K2.format("|d|"), "ref_logprob"),
    "low_var_kl+": _entry(
        "StraightThroughLowVarKLFn",
        "value of the clamped k3, gradient of k2",
        _OF_K2.format(_CLAMPED),
        "ref_logprob",
    ),
    "mse+": _entry("K2KLFn", "k2, whose gradient it already has", "d^2 / 2", "ref_logprob"),
}
KL_CONTENTS |= {"kl+": KL_CONTENTS["k1+"], "k2+": KL_CONTENTS["mse+"]}

_LAZY = {
    "KLFn": "trinity.algorithm.kl_fn.kl_fn",
    **{entry.path.partition(":")[2]: _PLACE for entry in KL_CONTENTS.values()},
}

__all__ = ["KL_CONTENTS", "KLFn"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
