"""Components as plain objects of this process, behind handles.

A component that needs its own process runs in a child process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from trinity.common.errors import AlreadyRunningError, DeadlineError
from trinity.runtime.base import CLOSE_GRACE_S, ActorDiedError, Handle, Order, Resources, Setup
from trinity.runtime.host import ComponentHost
from trinity.runtime.objects import LocalObjects
from trinity.runtime.process import ProcessRuntime, start_together
from trinity.utils.cores import available_cores
from trinity.utils.deadline import within

KILLED = "it was killed by its runtime"


class LocalHandle:
    """Handle of an object in this process; see `trinity.runtime.base.Handle`.

    A coroutine method is awaited on the caller's loop; any other method runs in the object's own worker
    thread, one call at a time, so that the loop continues meanwhile.

    Args:
        host: the component.
    """

    def __init__(self, host: ComponentHost) -> None:
        self.name = host.name
        self.pid = os.getpid()
        self.node = "localhost"
        self.cause: str | None = None
        self._host = host
        self._calls: set[asyncio.Future[Any]] = set()
        self._mourners: list[asyncio.Future[str]] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        self._host.method(name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.cause is not None:
                raise self._death()
            task = asyncio.ensure_future(self._host.call(name, args, kwargs))
            self._calls.add(task)
            try:
                return await task
            except asyncio.CancelledError:
                if self.cause is not None and task.cancelled():
                    raise self._death() from None
                raise
            finally:
                self._calls.discard(task)

        return call

    async def kill(self) -> None:
        """End every call; a plain method that computes is abandoned."""
        if self.cause is not None:
            return
        self.cause = KILLED
        self._host.close()
        for task in list(self._calls):
            task.get_loop().call_soon_threadsafe(task.cancel)
        for mourner in self._mourners:
            mourner.get_loop().call_soon_threadsafe(_tell, mourner, self.cause)

    async def wait_dead(self) -> str:
        """Return the cause of death, when the component was killed."""
        if self.cause is not None:
            return self.cause
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._mourners.append(future)
        return await future

    def let_go(self) -> None:
        """Let the worker thread end after its present call; wait for nothing."""
        self._host.close()

    def _death(self) -> ActorDiedError:
        return ActorDiedError(f"{self.name} (in this process) is gone: {self.cause}")


def _tell(future: asyncio.Future[str], cause: str) -> None:
    if not future.done():
        future.set_result(cause)


class LocalRuntime:
    """Places components in this process.

    Those with `Resources.own_process` run in child processes.

    Args:
        setup: what each child process does before it makes its component.
        divides_gpus: a child that asks for no GPU sees none.
    """

    is_local = True

    def __init__(self, setup: Setup | None = None, *, divides_gpus: bool = False) -> None:
        self.objects = LocalObjects()
        self._processes = ProcessRuntime(setup, divides_gpus=divides_gpus)
        self._handles: dict[str, LocalHandle] = {}

    @property
    def core_count(self) -> int:
        """CPU cores of this machine that the process may use."""
        return available_cores()

    async def start(self, cls: Callable[..., Any], *args: Any, **how: Any) -> Handle:
        """Return a handle of `cls(*args, **kwargs)`.

        The object is constructed in the component's worker thread.
        """
        order = Order.of(cls, args, how)
        if order.resources.own_process:
            return await self._processes.start(cls, *args, **how)
        return await self._start(order)

    async def group(self, cls: Callable[..., Any], count: int, *args: Any, **how: Any) -> list[Handle]:
        """Return handles of `count` components."""
        order = Order.of(cls, args, how)
        if order.resources.own_process:
            return await self._processes.group(cls, count, *args, **how)
        return await start_together([self._start(each) for each in order.ranks(count)])

    async def reserve(self, count: int, *, resources: Resources, **_how: Any) -> list[Resources]:
        """Return resources of `count` components; this reserves nothing."""
        return [resources] * count

    async def _start(self, order: Order) -> Handle:
        if order.name in self._handles and self._handles[order.name].cause is None:
            raise AlreadyRunningError(f"a component named {order.name} lives in this process", code="E8010")
        host = ComponentHost(order.name)
        try:
            await within(host.construct(order.cls, order.args, order.kwargs), order.timeout_s)
        except TimeoutError as error:
            host.close()
            raise DeadlineError(f"{order.name} did not start within {order.timeout_s:g} s", code="E5702") from error
        handle = self._handles[order.name] = LocalHandle(host)
        return handle

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """End worker threads and child processes.

        A call that never returns is abandoned.
        """
        for handle in self._handles.values():
            handle.let_go()
        self._handles.clear()
        await self._processes.close(grace_s=grace_s)
