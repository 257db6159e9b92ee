"""Handles and worker threads of the local runtime."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest

from trinity.runtime.local import LocalRuntime
from trinity.runtime.worker_thread import WorkerThread


class Counter:
    """A component with a blocking and an async method."""

    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value = start
        self.step = step
        self._hidden = 0

    def add(self) -> tuple[int, str]:
        self.value += self.step
        return self.value, threading.current_thread().name

    async def loop_thread(self) -> str:
        return threading.current_thread().name

    def fail(self) -> None:
        raise LookupError("no such thing")


def test_sync_methods_run_in_the_components_thread_and_async_ones_on_the_loop() -> None:
    async def main() -> None:
        runtime = LocalRuntime()
        handle = await runtime.start(Counter, 10, step=5)
        assert await handle.add() == (15, "Counter")
        assert await handle.add() == (20, "Counter")
        assert await handle.loop_thread() == threading.current_thread().name
        await runtime.close()

    asyncio.run(main())


def test_a_handle_passes_errors_on_and_shows_only_public_methods() -> None:
    async def main() -> None:
        handle = await LocalRuntime().start(Counter, 0)
        with pytest.raises(LookupError, match="no such thing"):
            await handle.fail()
        with pytest.raises(AttributeError, match="value is no method"):
            handle.value  # noqa: B018
        with pytest.raises(AttributeError, match="private"):
            handle._hidden_method  # noqa: B018
        handle.let_go()

    asyncio.run(main())


def test_the_loop_goes_on_while_a_call_blocks() -> None:
    async def main() -> None:
        worker = WorkerThread("blocking")
        call = asyncio.ensure_future(worker.call(time.sleep, 0.3))
        ticks = 0
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 5
        worker.close()

    asyncio.run(main())


def test_an_exit_inside_a_call_reaches_the_caller_as_an_error() -> None:
    async def main() -> None:
        worker = WorkerThread("exit")
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await worker.call(sys.exit, 3)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await worker.call(next, iter(()))
        worker.close()
        with pytest.raises(RuntimeError, match="closed"):
            await worker.call(len, "x")

    asyncio.run(main())


def test_the_end_of_a_worker_waits_for_its_calls_up_to_a_deadline(caplog: pytest.LogCaptureFixture) -> None:
    release, written = threading.Event(), []

    async def main() -> None:
        writer, stuck = WorkerThread("writer"), WorkerThread("stuck")
        calls = [
            asyncio.ensure_future(each)
            for each in (writer.call(time.sleep, 0.3), writer.call(written.append, "all"), stuck.call(release.wait))
        ]
        await asyncio.sleep(0)
        await writer.end()
        assert written == ["all"] and not writer.is_alive
        with caplog.at_level(logging.WARNING, logger="trinity.launch"):
            await stuck.end(0.1)
        assert stuck.is_alive
        await WorkerThread("never started").end()
        release.set()
        await asyncio.gather(*calls)

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "stuck is still at work after 0.1 s and is left behind"
    ]


def test_an_abandoned_call_does_not_keep_the_process_alive() -> None:
    program = """
import asyncio, time
from trinity.runtime.worker_thread import WorkerThread
async def main():
    worker = WorkerThread("stuck")
    try:
        await asyncio.wait_for(worker.call(time.sleep, 60), 0.1)
    except TimeoutError:
        worker.close()
        assert worker.is_alive
asyncio.run(main())
"""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert time.monotonic() - started < 20
