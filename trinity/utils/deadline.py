"""Waits that end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from trinity.common.errors import DeadlineError

T = TypeVar("T")


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
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError as error:
        raise DeadlineError(
            f"timed out after {seconds:g} s waiting for {what}; raise {setting} if this wait may be longer",
            code="E5301",
        ) from error
