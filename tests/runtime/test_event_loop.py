"""The event loop ends although somebody never does, and notices when it stands still."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

import pytest

from trinity.common.errors import ExitCode
from trinity.runtime.event_loop import LoopWatch, run_event_loop
from trinity.runtime.process_exit import left_behind, lingering_threads


def test_the_result_and_the_error_of_the_main_coroutine_come_through():
    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise LookupError("not here")

    assert run_event_loop(answer()) == 42
    with pytest.raises(LookupError, match="not here"):
        run_event_loop(fail())


def test_threads_and_tasks_that_never_end_are_left_behind():
    release = threading.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def main() -> str:
        asyncio.get_running_loop().run_in_executor(None, release.wait)
        asyncio.create_task(stubborn())
        await asyncio.sleep(0.05)
        return "done"

    before = len(left_behind)
    started = time.monotonic()
    assert run_event_loop(main(), grace_s=0.2) == "done"
    assert time.monotonic() - started < 30
    assert len(left_behind) == before + 1
    assert any(thread.name.startswith("to_thread") for thread in lingering_threads())
    release.set()


def test_calls_in_threads_are_waited_for():
    written: list[str] = []

    def write() -> None:
        begun.set()
        time.sleep(0.3)
        written.append("all")

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, write)
        await asyncio.to_thread(begun.wait)

    begun = threading.Event()
    run_event_loop(main())
    assert written == ["all"]


def watched(limit_s: float, blocked_s: float) -> list[int]:
    """Return the statuses with which the watch ended the process while the loop was blocked."""
    ended: list[int] = []

    async def main() -> None:
        with LoopWatch(limit_s, what="the limit of the test", end=ended.append):
            await asyncio.sleep(0.05)
            time.sleep(blocked_s)
            await asyncio.sleep(0.05)

    run_event_loop(main())
    return ended


def test_a_loop_that_stands_still_ends_the_process_with_the_place(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR):
        assert watched(0.2, 0.9) == [ExitCode.RUNTIME]
    if caplog.text:
        assert "test_event_loop.py" in caplog.text and "the limit of the test" in caplog.text


def test_a_loop_that_turns_in_time_is_left_alone():
    assert watched(0.6, 0.2) == []
