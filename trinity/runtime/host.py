"""A component in its process: how its methods are called and cancelled."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trinity.runtime.base import Setup, public_name
from trinity.runtime.failure import Failure
from trinity.runtime.worker_thread import WorkerThread


class ComponentHost:
    """Holds one component and calls its methods.

    A coroutine method runs on the caller's loop; any other method runs in the component's own worker thread, one call
    at a time, so that the loop continues meanwhile.

    Args:
        name: of the component.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._worker = WorkerThread(name)
        self._target: Any = None
        self._tasks: dict[int | str, asyncio.Task[Any]] = {}

    async def construct(self, cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make the component, in its worker thread."""
        self._target = await self._worker.call(cls, *args, **kwargs)

    def method(self, name: str) -> Callable[..., Any]:
        """Return a public method of the component.

        Raises:
            AttributeError: there is none of this name.
        """
        component = type(self._target).__name__
        method = getattr(self._target, public_name(name, component))
        if not callable(method):
            raise AttributeError(f"{component}.{name} is no method; a handle gives methods")
        return method

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a method of the component returns."""
        method = self.method(name)
        if inspect.iscoroutinefunction(method):
            return await method(*args, **kwargs)
        return await self._worker.call(method, *args, **kwargs)

    async def run(self, number: int | str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a method returns; `cancel` with the same number cancels it."""
        task = asyncio.ensure_future(self.call(name, args, kwargs))
        self._tasks[number] = task
        try:
            return await task
        finally:
            self._tasks.pop(number, None)

    def cancel(self, number: int | str) -> None:
        """Cancel the call `number`, if it is under way."""
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel every call under way."""
        for task in list(self._tasks.values()):
            task.cancel()

    def close(self) -> None:
        """Let the worker thread end after its present call; wait for nothing."""
        self._worker.close()


class ActorHost:
    """A component whose exceptions are returned in messages, not raised.

    Args:
        name: of the component.
    """

    def __init__(self, name: str) -> None:
        self._host = ComponentHost(name)

    def __repr__(self) -> str:
        return self._host.name  # the prefix of its lines in the driver's output

    async def set_up(self, setup: Setup | None, env: Mapping[str, str]) -> None:
        """Prepare the process."""
        os.environ.update(env)
        if setup is not None:
            await asyncio.to_thread(setup.run, self._host.name)

    async def construct(
        self, cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Failure | None:
        """Make the component."""
        try:
            await self._host.construct(cls, args, kwargs)
        except Exception as error:  # noqa: BLE001 - handed to the caller, who handles it
            return Failure.of(error, self._host.name)
        return None

    async def run(self, number: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a method of the component returns, or its failure."""
        try:
            return await self._host.run(number, name, args, kwargs)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - handed to the caller, who handles it
            return Failure.of(error, self._host.name)

    async def cancel(self, number: str) -> None:
        """Cancel a call under way."""
        self._host.cancel(number)

    async def answer(self) -> str:
        """Return the name, as a sign of life."""
        return self._host.name

    async def watch(self) -> None:
        """Wait for ever: the call fails when the process dies."""
        await asyncio.Event().wait()
