"""Waits that end, and what is said while they last."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from trinity.common.errors import DeadlineError
from trinity.utils.deadline import bounded, telling, within

LOGGER = logging.getLogger("trinity.test")


def test_a_long_wait_is_told_again_and_again_until_it_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        told = asyncio.Event()
        monkeypatch.setattr(LOGGER, "filter", lambda record: told.set() or True if caplog.records else True)
        with telling(LOGGER, "engine 1", every_s=0.02, limit_s=60, setting="a.key"):
            await asyncio.wait_for(told.wait(), 30)
        count = len(caplog.records)
        await asyncio.sleep(0.1)
        assert len(caplog.records) == count, "it has ended"

    with caplog.at_level(logging.WARNING, LOGGER.name):
        asyncio.run(main())
    assert re.fullmatch(r"waiting for engine 1 for \d+ s \(at most 60 s, a\.key\)", caplog.records[0].getMessage())


def test_a_wait_names_its_key_at_the_deadline() -> None:
    async def main() -> None:
        await bounded(asyncio.Event().wait(), 0.01, what="a miracle", setting="a.key")

    with pytest.raises(DeadlineError, match=r"E5301.*0\.01 s waiting for a miracle; raise a\.key"):
        asyncio.run(main())


def test_a_cancellation_that_meets_the_result_is_not_lost() -> None:
    """A loop that is cancelled between two rounds would otherwise continue, and who waits for its end with it."""

    async def main() -> None:
        for wait in (lambda answer: within(answer, 60), lambda answer: bounded(answer, 60, what="it", setting="a.key")):
            answer = asyncio.get_running_loop().create_future()
            waiting = asyncio.ensure_future(wait(answer))
            await asyncio.sleep(0)
            answer.set_result(1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())
