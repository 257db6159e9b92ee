"""Components in this process: plain objects behind handles."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from trinity.runtime.worker_thread import WorkerThread


class LocalHandle:
    """Handle of an object in this process.

    A coroutine method is awaited on the caller's loop; any other method runs in the object's own worker
    thread, one call at a time, so that the loop goes on meanwhile.

    Args:
        target: the component.
        worker: thread of its blocking methods.
    """

    def __init__(self, target: Any, worker: WorkerThread) -> None:
        self._target = target
        self._worker = worker

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(f"{type(self._target).__name__}.{name} is private; a handle gives public methods")
        method = getattr(self._target, name)
        if not callable(method):
            raise AttributeError(f"{type(self._target).__name__}.{name} is no method; a handle gives methods")
        if inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._worker.call(method, *args, **kwargs)

        return call

    def close(self) -> None:
        """Let the worker thread end after its present call; wait for nothing."""
        self._worker.close()


class LocalRuntime:
    """Places components in this process."""

    def __init__(self) -> None:
        self._handles: list[LocalHandle] = []

    async def start(self, cls: Callable[..., Any], *args: Any, **kwargs: Any) -> LocalHandle:
        """Return a handle of `cls(*args, **kwargs)`, constructed in the component's worker thread."""
        worker = WorkerThread(getattr(cls, "__name__", "component"))
        target = await worker.call(cls, *args, **kwargs)
        handle = LocalHandle(target, worker)
        self._handles.append(handle)
        return handle

    async def close(self) -> None:
        """Let every worker thread end; a call that never returns is abandoned."""
        for handle in self._handles:
            handle.close()
        self._handles.clear()
