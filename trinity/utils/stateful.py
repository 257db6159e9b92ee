"""Plugins that remember something from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """A function or operator whose memory is part of a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from it."""
        ...
