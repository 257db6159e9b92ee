"""Entropy terms of the loss.

A plugin adds its own with `@ENTROPY_LOSS_FN.register_module("name")`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.algorithm import ENTROPY_LOSS_CONTENTS

if TYPE_CHECKING:
    from trinity.algorithm import ENTROPY_LOSS_FN as ENTROPY_LOSS_FN
    from trinity.algorithm.entropy_loss_fn.entropy_loss_fn import EntropyLossFn as EntropyLossFn

_LAZY = {
    "ENTROPY_LOSS_FN": "trinity.algorithm",
    "EntropyLossFn": "trinity.algorithm.entropy_loss_fn.entropy_loss_fn",
    **{entry.path.partition(":")[2]: entry.path.partition(":")[0] for entry in ENTROPY_LOSS_CONTENTS.values()},
}

__all__ = ["ENTROPY_LOSS_FN", "EntropyLossFn"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
