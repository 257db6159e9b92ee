"""Waits that end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from trinity.common.errors import DeadlineError

T = TypeVar("T")


async def within(awaitable: Awaitable[T], seconds: float) -> T:
    """Return the result of `awaitable`, waiting at most `seconds`.

    Unlike Python 3.11's `asyncio.wait_for` it loses no cancellation that comes together with the result; otherwise
    whoever cancelled a task that waits here, and waits for its end, would wait for ever.

    Raises:
        TimeoutError: the deadline was reached; `awaitable` was cancelled.
    """
    async with asyncio.timeout(seconds):
        return await awaitable


async def bounded(awaitable: Awaitable[T], seconds: float, *, what: str, setting: str) -> T:
    """Return the result of `awaitable`, waiting at most `seconds`.

    Args:
        awaitable: what to wait for; cancelled at the deadline.
        seconds: the deadline, from now.
        what: the wait, in words, for the message.
        setting: the configuration key that bounds it.

    Raises:
        DeadlineError: the deadline was reached.
    """
    try:
        return await within(awaitable, seconds)
    except TimeoutError as error:
        raise DeadlineError(
            f"timed out after {seconds:g} s waiting for {what}; raise {setting} if this wait may be longer",
            code="E5301",
        ) from error


@contextlib.contextmanager
def telling(logger: logging.Logger, what: str, *, every_s: float, limit_s: float, setting: str) -> Iterator[None]:
    """Log what the block waits for, every `every_s` seconds.

    The messages come from the running event loop.

    Args:
        logger: takes the lines.
        what: the wait, in words.
        every_s: between two lines.
        limit_s: the deadline of the wait.
        setting: the configuration key that bounds it.
    """
    loop, begun = asyncio.get_running_loop(), time.monotonic()

    def tell() -> None:
        waited_s = time.monotonic() - begun
        logger.warning("waiting for %s for %.0f s (at most %g s, %s)", what, waited_s, limit_s, setting)
        later.append(loop.call_later(every_s, tell))

    later = deque([loop.call_later(every_s, tell)], maxlen=1)
    try:
        yield
    finally:
        later.pop().cancel()
