"""Advantage functions.

A plugin adds its own with `@ADVANTAGE_FN.register_module("name")`. The pipeline calls those on groups of experiences,
the trainer calls the others with the tensors of a batch. Names with the same maths share a class. The prefix `verl_`
marks veRL's functions, because some of their names mean something else here; the others are also registered under their
name without the prefix.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.algorithm import ADVANTAGE_FN as ADVANTAGE_FN
    from trinity.algorithm.advantage_fn.advantage_fn import AdvantageFn as AdvantageFn
    from trinity.algorithm.advantage_fn.advantage_fn import GroupAdvantage as GroupAdvantage
    from trinity.algorithm.advantage_fn.token_advantage import TokenAdvantage as TokenAdvantage

_LAZY = {
    "ADVANTAGE_FN": "trinity.algorithm",
    "AdvantageFn": "trinity.algorithm.advantage_fn.advantage_fn",
    "GroupAdvantage": "trinity.algorithm.advantage_fn.advantage_fn",
    "TokenAdvantage": "trinity.algorithm.advantage_fn.token_advantage",
}

__all__ = ["ADVANTAGE_FN", "AdvantageFn", "GroupAdvantage", "TokenAdvantage"]


def __getattr__(name: str) -> Any:
    """Import a base class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
