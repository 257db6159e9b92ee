"""Work that continues together and ends together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def all_or_none(
    work: Sequence[Coroutine[Any, Any, None]], *, until: Coroutine[Any, Any, None] | None = None
) -> None:
    """Wait for all coroutines, or for `until`.

    When one fails or the wait ends, the remaining coroutines are cancelled.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    everything: asyncio.Future[Any] = asyncio.gather(*tasks)
    end = {everything}
    if until is not None:
        end.add(asyncio.ensure_future(until))
    try:
        # Each attempt of the work has its deadline.
        await asyncio.wait(end, return_when=asyncio.FIRST_COMPLETED)
        if everything.done():
            everything.result()
    finally:
        for task in [*tasks, *end]:
            task.cancel()
        await asyncio.gather(*tasks, *end, return_exceptions=True)
