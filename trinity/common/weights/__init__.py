"""Transfer of a version's weights from the trainer to an engine.

Only a small ticket travels. The engine's side fetches the tensors itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.common.weights.collective import shared_by
    from trinity.common.weights.receiver import receive, update_from
    from trinity.common.weights.ticket import Ticket, fingerprint, layout_fingerprint, num_bytes

_HOMES = {
    "Ticket": "ticket",
    "fingerprint": "ticket",
    "layout_fingerprint": "ticket",
    "num_bytes": "ticket",
    "receive": "receiver",
    "shared_by": "collective",
    "update_from": "receiver",
}

__all__ = ["Ticket", "fingerprint", "layout_fingerprint", "num_bytes", "receive", "shared_by", "update_from"]


def __getattr__(name: str) -> Any:
    """Import a name on first access: tickets alone need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
