"""An event loop that ends without waiting and notices being blocked.

`asyncio.run` waits without a deadline for cancelled tasks and for the threads of `asyncio.to_thread`; user code that
never returns would then keep the process alive for ever.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import trinity
from trinity.common.errors import ExitCode
from trinity.runtime.process_exit import flush_output, leave_at_once, left_behind
from trinity.utils.log import get_logger

T = TypeVar("T")

logger = get_logger("launch")

END_GRACE_S = 2.0
WATCH_INTERVAL_S = 1.0


def run_event_loop(main: Coroutine[Any, Any, T], *, grace_s: float = END_GRACE_S) -> T:
    """Run `main` on a new event loop in this thread; return its result.

    At the end, tasks that are left are cancelled and get `grace_s` seconds, and so do calls of `asyncio.to_thread`;
    those that continue are left behind.
    """
    loop = asyncio.new_event_loop()
    executor = _Threads(thread_name_prefix="to_thread")
    loop.set_default_executor(executor)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.run_until_complete(_cancel_all(grace_s))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            executor.end(grace_s)
            asyncio.set_event_loop(None)
            loop.close()


class _Threads(ThreadPoolExecutor):
    """Runs the calls of `asyncio.to_thread`; waits for them at its end."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._under_way: set[Future[Any]] = set()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Return the future of a call."""
        future = super().submit(function, *args, **kwargs)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def end(self, grace_s: float) -> None:
        """Cancel calls not yet begun; wait up to `grace_s` seconds for others."""
        self.shutdown(wait=False, cancel_futures=True)
        _, late = wait(set(self._under_way), timeout=grace_s)
        if late:
            logger.warning("%d calls in threads did not return within %g s and are left behind", len(late), grace_s)


async def _cancel_all(grace_s: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    _, alive = await asyncio.wait(tasks, timeout=grace_s)
    if alive:
        left_behind.extend(alive)
        logger.warning("%d asynchronous calls did not end when they were cancelled and are left behind", len(alive))


class LoopWatch:
    """Ends the process when the running event loop is blocked.

    All deadlines are kept on the loop, so nothing else could end it.

    Args:
        limit_s: longest time without a turn of the loop, in seconds.
        what: the limit and what it is made of, for the message.
        end: ends the process with a status.
    """

    def __init__(self, limit_s: float, *, what: str, end: Callable[[int], Any] = leave_at_once) -> None:
        self.limit_s = limit_s
        self.what = what
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._last_turn = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)

    def __enter__(self) -> LoopWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()

    def _turn(self) -> None:
        self._last_turn = time.monotonic()

    def _watch(self) -> None:
        asked = time.monotonic()
        while not self._stopped.wait(min(WATCH_INTERVAL_S, self.limit_s)):
            now = time.monotonic()
            # A process that was itself suspended has not stood still: the watch slept as long.
            if now - asked > 2 * WATCH_INTERVAL_S + self.limit_s:
                self._last_turn = now
            asked = now
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:
                return  # the loop was closed
            if now - self._last_turn > self.limit_s:
                self._give_up(now - self._last_turn)
                return

    def _give_up(self, seconds: float) -> None:
        logger.error(
            "[E5303] the event loop has stood still for %.0f s in %s: asynchronous code must not block, so await what "
            "waits or make the workflow synchronous (longest time allowed: %s)",
            seconds,
            self._place(),
            self.what,
        )
        flush_output()
        self._end(int(ExitCode.RUNTIME))

    def _place(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        frames = traceback.extract_stack(frame)
        standard = (str(Path(os.__file__).parent), str(Path(trinity.__file__).parent))
        own = [f for f in frames if not f.filename.startswith((*standard, "<"))]
        chosen = (own or list(frames))[-1:]
        return f"{chosen[0].filename}:{chosen[0].lineno} in {chosen[0].name}" if chosen else "an unknown place"
