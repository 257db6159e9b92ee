"""Divergences from the reference model.

A plugin adds its own with `@KL_FN.register_module("name")`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.algorithm import KL_CONTENTS

if TYPE_CHECKING:
    from trinity.algorithm import KL_FN as KL_FN
    from trinity.algorithm.kl_fn.kl_fn import KLFn as KLFn

_LAZY = {
    "KL_FN": "trinity.algorithm",
    "KLFn": "trinity.algorithm.kl_fn.kl_fn",
    **{path.partition(":")[2]: path.partition(":")[0] for path in (entry.path for entry in KL_CONTENTS.values())},
}

__all__ = ["KL_FN", "KLFn"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
