"""A daemon thread that runs calls one after another and can be abandoned.

`concurrent.futures` joins its threads when the interpreter exits; code that never returns would then keep
the process alive for ever. These threads are daemons, and no wait for them is without a deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from trinity.runtime.base import CLOSE_GRACE_S
from trinity.utils.log import get_logger

T = TypeVar("T")

logger = get_logger("launch")


class WorkerThread:
    """Runs blocking calls for an event loop in the order of submission.

    Args:
        name: name of the thread, as log lines and debuggers show it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, also while abandoned in a stuck call."""
        return self._thread is not None and self._thread.is_alive()

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return `function(*args, **kwargs)`, computed in the thread.

        Cancelling the wait abandons the call: it continues in the thread, and its result is discarded.

        Raises:
            RuntimeError: the worker is closed, or the call ended with something that is no `Exception`
                (`SystemExit`, for one), which must not end the event loop.
        """
        if self.is_closed:
            raise RuntimeError(f"worker thread {self.name} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            value, error = _outcome(context, function, args, kwargs)
            try:
                loop.call_soon_threadsafe(_deliver, future, value, error)
            except RuntimeError:
                return  # the loop was closed while the call ran; nobody waits for the result

        self._calls.put(work)
        self._start()
        return await future

    def close(self) -> None:
        """End the thread after the submitted calls, without waiting.

        A stuck call is abandoned.
        """
        self.is_closed = True
        self._calls.put(None)

    async def end(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Close, and wait until the submitted calls have returned.

        What they write is written then.

        One that takes longer than `grace_s` seconds is abandoned with a warning.
        """
        self.close()
        if self._thread is None:
            return
        await call_in_thread(self._thread.join, grace_s)
        if self.is_alive:
            logger.warning("%s is still at work after %g s and is left behind", self.name, grace_s)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()


async def call_in_thread(function: Callable[..., T], *args: Any) -> T:
    """Return `function(*args)`, computed in a new thread that is never joined.

    Where the function may never return, this takes the place of `asyncio.to_thread`, whose thread would keep the
    process alive.
    """
    worker = WorkerThread(function.__name__)
    try:
        return await worker.call(function, *args)
    finally:
        worker.close()


def _outcome(
    context: contextvars.Context, function: Callable[..., T], args: Any, kwargs: Any
) -> tuple[T | None, Exception | None]:
    try:
        return context.run(function, *args, **kwargs), None
    except StopIteration as error:  # a future cannot carry it
        return None, _wrapped(error)
    except Exception as error:  # noqa: BLE001 - handed to the caller unchanged: a transport, not a handler
        return None, error
    except BaseException as error:  # noqa: BLE001 - SystemExit of called code must not end the event loop
        return None, _wrapped(error)


def _wrapped(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"the call ended with {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped.with_traceback(error.__traceback__)


def _deliver(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
