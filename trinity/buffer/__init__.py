"""Storage of experiences and tasks, and the readers and writers on it.

The selectors, operators, priority functions and pipelines live here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.buffer.buffer import get_buffer_reader, get_buffer_writer

__all__ = ["get_buffer_reader", "get_buffer_writer"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from trinity.buffer import buffer

        return getattr(buffer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
