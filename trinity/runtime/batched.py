"""Calls that travel together.

The calls of one turn of the event loop share a message, and so do their results.

A call through a cluster costs about a millisecond on either side, whatever it carries. Where dozens are made at once,
and each is short, that is what they cost.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trinity.runtime.base import ActorDiedError, Handle
from trinity.runtime.failure import Failure
from trinity.runtime.messages import from_bytes, to_bytes

COLLECT_TIMEOUT_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A call on its way.

    Attributes:
        number: of the call, among those of one caller.
        method: of the component; empty for a call that nobody waits for any more.
        args: positional arguments.
        kwargs: arguments by name.
    """

    number: int
    method: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What happened to a call: `data`, for `from_bytes`, or a failure."""

    number: int
    data: bytes = b""
    failure: Failure | None = None

    def value(self) -> Any:
        """Return what the method returned.

        Raises:
            Exception: what it raised.
        """
        if self.failure is not None:
            raise self.failure.error()
        return from_bytes(self.data)


class Mail(Generic[T]):
    """Items that wait until they are taken, all of them; for one event loop."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._arrived = asyncio.Event()

    def put(self, items: Iterable[T]) -> None:
        """Add items."""
        self._items += items
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[T]:
        """Return the items; wait for the first one, `timeout_s` at most."""
        if not self._items:
            self._arrived.clear()
            waiting = asyncio.ensure_future(self._arrived.wait())
            await asyncio.wait({waiting}, timeout=timeout_s)
            waiting.cancel()
        items, self._items = self._items, []
        return items


class Fetched:
    """Carries the calls of a process that may open no connection.

    The component that they call fetches them and returns the results.

    Args:
        name: of the component, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: Mail[Call] = Mail()
        self.results: Mail[Result] = Mail()

    async def post(self, caller: str, calls: Sequence[Call]) -> None:
        """Keep the calls until they are fetched."""
        self.calls.put(calls)

    async def collect(self, caller: str, timeout_s: float) -> list[Result]:
        """Return what was brought."""
        return await self.results.take(timeout_s)


class BatchedCalls:
    """Calls methods of a component; for one event loop.

    Args:
        carrier: brings the calls there: the handle of a component that has a `BatchedHost`, or what it fetches from.
    """

    def __init__(self, carrier: Handle | Fetched) -> None:
        self._carrier = carrier
        self._caller = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._new: list[Call] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._collecting: asyncio.Task[None] | None = None

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a method returns; a cancelled wait cancels it there.

        Raises:
            ActorDiedError: the process of the component is gone (E5701).
            Exception: what the method raises.
        """
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._put(Call(number, method, args, kwargs))
        try:
            return await future
        except asyncio.CancelledError:
            self._put(Call(number, ""))
            raise
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """Stop; pending calls fail because the component is gone."""
        for task in (self._sending, self._collecting):
            if task is not None:
                task.cancel()
        self._fail([Call(number, "") for number in self._waiting], ActorDiedError(f"{self._carrier.name} was ended"))

    def _put(self, call: Call) -> None:
        self._new.append(call)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.ensure_future(self._collect())

    async def _send(self) -> None:
        while self._new:
            calls, self._new = self._new, []
            try:
                await self._carrier.post(self._caller, calls)
            except ActorDiedError as error:
                self._fail(calls, error)
            except Exception:  # noqa: BLE001 - what cannot travel is the fault of one of them
                for call in calls:
                    await self._send_alone(call)

    async def _send_alone(self, call: Call) -> None:
        try:
            await self._carrier.post(self._caller, [call])
        except Exception as error:  # noqa: BLE001 - its caller handles it
            self._fail([call], error)

    async def _collect(self) -> None:
        # The callers have the deadlines.
        while self._waiting:
            try:
                results: Sequence[Result] = await self._carrier.collect(self._caller, COLLECT_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - all who wait handle it
                self._fail([Call(number, "") for number in self._waiting], error)
                return
            for result in results:
                self._deliver(result)

    def _deliver(self, result: Result) -> None:
        future = self._waiting.get(result.number)
        if future is None or future.done():
            return
        try:
            future.set_result(result.value())
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)

    def _fail(self, calls: Sequence[Call], error: Exception) -> None:
        for call in calls:
            future = self._waiting.get(call.number)
            if future is not None and not future.done():
                future.set_exception(error)


class BatchedHost:
    """Answers `BatchedCalls` where the component is.

    Args:
        component: whose methods are called.
        name: of the component, for failures.
    """

    def __init__(self, component: Any, name: str) -> None:
        self._component = component
        self._name = name
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._results: defaultdict[str, Mail[Result]] = defaultdict(Mail)

    async def post(self, caller: str, calls: Sequence[Call]) -> None:
        """Begin the calls, or cancel them."""
        for call in calls:
            key = caller, call.number
            if call.method:
                self._tasks[key] = asyncio.ensure_future(self._perform(caller, call))
            elif key in self._tasks:
                self._tasks[key].cancel()

    async def collect(self, caller: str, timeout_s: float) -> list[Result]:
        """Return the available results.

        Waits for the first one, at most `timeout_s`.
        """
        return await self._results[caller].take(timeout_s)

    def close(self) -> None:
        """Cancel the calls under way."""
        for task in list(self._tasks.values()):
            task.cancel()

    async def _perform(self, caller: str, call: Call) -> None:
        try:
            value = getattr(self._component, call.method)(*call.args, **call.kwargs)
            if inspect.isawaitable(value):
                value = await value
            result = Result(call.number, to_bytes(value))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the caller handles it
            result = Result(call.number, failure=Failure.of(error, self._name))
        finally:
            del self._tasks[caller, call.number]
        self._results[caller].put([result])
