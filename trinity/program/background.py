"""A run in a thread of its own.

Signals, event loops and callbacks stay the program's.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from trinity.common.errors import AlreadyRunningError, DeadlineError, ExitCode, TrinityError
from trinity.launch.guest import settings_kept
from trinity.launch.stop import StopSignal
from trinity.program.events import CallbackError, Callbacks, Event, failed
from trinity.runtime.process_exit import as_guest

T = TypeVar("T")

_under_way = threading.Lock()


class Background(Generic[T]):
    """Does `work` in a thread; its events are told in the thread that waits.

    One at a time in a process: a run sets what all threads share.

    Args:
        work: the run; gets a function that takes events.
        callbacks: what the events are told to.
        stop: asks the run to stop.

    Raises:
        AlreadyRunningError: a run of this process has not ended (E8004).
    """

    def __init__(
        self, work: Callable[[Callable[[Event], object]], T], *, callbacks: Callbacks, stop: StopSignal
    ) -> None:
        if not _under_way.acquire(blocking=False):
            raise AlreadyRunningError(
                "this process has a run already, and its threads share torch's settings; wait for its end, or start "
                "the other in a process of its own. A callback can start none; a run that was left behind by a second "
                "Ctrl-C ends with its step, or with the process",
                code="E8004",
            )
        self._work, self._callbacks, self._stop = work, callbacks, stop
        self._settings = settings_kept()
        self._put: Callable[[Event | None], object] = lambda _: None
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._failed: CallbackError | None = None

    def wait(self) -> T:
        """Run to the end in this thread's place; return the result.

        The first exception that comes while it waits, such as KeyboardInterrupt, stops the run after its step and is
        raised then; a second one is raised at once.

        Raises:
            CallbackError: a callback raised.
            TrinityError: what ended the run.
        """
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        interrupted: BaseException | None = None
        self._begin(events.put)
        while True:
            try:
                event = events.get()
                if event is None:
                    break
                self._tell(event)
            except BaseException as error:
                if interrupted is not None:
                    raise
                interrupted = error
                self._stop.request(ExitCode.INTERRUPTED)
        return self._end(interrupted)

    async def wait_async(self) -> T:
        """Run to the end without blocking the event loop; see `wait`.

        A cancellation stops the run after its step. Callbacks may be coroutine functions.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | None]()
        interrupted: BaseException | None = None

        def put(event: Event | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._begin(put)
        while True:
            try:
                event = await events.get()
                if event is None:
                    break
                given = self._tell(event, may_wait=True)
                if given is not None:
                    await self._awaited(event, given)
            except BaseException as error:
                if interrupted is not None:
                    raise
                interrupted = error
                self._stop.request(ExitCode.INTERRUPTED)
        return self._end(interrupted)

    def _begin(self, put: Callable[[Event | None], object]) -> None:
        self._put = put
        # A copy of the context sends what the run prints to where this thread prints: in a notebook, below its cell.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="run", daemon=True).start()

    def _run(self) -> None:
        try:
            with as_guest(self._left), self._settings:
                self._result.append(self._work(self._put))
        except BaseException as error:  # noqa: BLE001  the thread that waits raises it
            self._error = self._error or error
        finally:
            _under_way.release()
            self._put(None)

    def _left(self, status: int) -> None:
        """Take that the run cannot end, and would end the process."""
        self._error = DeadlineError(
            f"the run is blocked and was abandoned with exit status {status}: asynchronous code of a workflow "
            "blocks its event loop (the log says where); await what waits, and restart this process before another run",
            code="E5303",
        )
        self._put(None)

    def _tell(self, event: Event, *, may_wait: bool = False) -> Any:
        if self._failed is not None:
            return None
        try:
            given = self._callbacks.tell(event)
        except CallbackError as error:
            self._fail(error)
            return None
        if given is not None and not may_wait:
            if inspect.iscoroutine(given):
                given.close()
            name = self._callbacks.name_of(event)
            self._fail(failed(name, TypeError("a coroutine function can be awaited by trinity.run_async only")))
        return given

    async def _awaited(self, event: Event, given: Any) -> None:
        try:
            await given
        except Exception as error:  # noqa: BLE001  code of the program, which may raise anything
            self._fail(failed(self._callbacks.name_of(event), error))

    def _fail(self, error: CallbackError) -> None:
        self._failed = error
        self._stop.fail(error)

    def _end(self, interrupted: BaseException | None) -> T:
        if interrupted is not None:
            raise interrupted
        if self._failed is not None:
            raise self._failed
        if self._error is not None:
            raise self._error
        if not self._result:
            raise TrinityError("the thread of the run ended without a result")
        return self._result[0]
