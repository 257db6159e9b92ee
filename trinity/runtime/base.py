"""What places components: a runtime starts objects and hands out handles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Handle(Protocol):
    """A component somewhere; `await handle.method(args)` calls it, wherever it runs."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]: ...

    def close(self) -> None:
        """Release the placement; the component's own `close` is its caller's business."""


class Runtime(Protocol):
    """Places components and hands out handles."""

    async def start(self, cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Handle:
        """Return a handle of `cls(*args, **kwargs)`, constructed where the runtime places it."""
        ...

    async def close(self) -> None:
        """Release every placement."""
