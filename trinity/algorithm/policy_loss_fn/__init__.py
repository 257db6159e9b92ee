"""Policy losses.

The prefix `verl_` marks veRL's losses. Where the name without it is not taken, they are registered under that, too.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "POLICY_LOSS_FN": "trinity.algorithm",
    "PolicyLossFn": "trinity.algorithm.policy_loss_fn.policy_loss_fn",
    "TokenLossFn": "trinity.algorithm.policy_loss_fn.token_loss",
}

__all__ = ["POLICY_LOSS_FN", "PolicyLossFn", "TokenLossFn"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
