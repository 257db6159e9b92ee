"""The watch over vLLM's processes, with real ones that compute, sleep and are stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from trinity.engine.vllm.core_watch import CoreWatch, ProbeTimes

COMPUTE, SLEEP = "while True: pass", "import time; time.sleep(600)"
COMPUTE_BELOW = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTE!r}])"
SOON = ProbeTimes(interval_s=0.05, answer_s=1.0, step_s=3.0)

Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program and returns its process; all are gone at the end."""
    made: list[subprocess.Popen[bytes]] = []

    def program(text: str) -> int:
        made.append(subprocess.Popen([sys.executable, "-c", text], start_new_session=True))
        return made[-1].pid

    yield program
    for each in made:
        os.killpg(each.pid, signal.SIGKILL)
        each.wait(10)


def given_up(pids: list[int], times: ProbeTimes, answer: Callable[[], Coroutine[Any, Any, object]]) -> tuple[str, str]:
    """Return code and reason with which the watch over `pids` ends."""
    told: list[tuple[str, str]] = []

    def give_up(message: str, *, code: str, cause: BaseException | None) -> None:
        told.append((code, message))

    watch = CoreWatch(answer, pids, times, waiting=lambda: "with 3 samples under way", give_up=give_up)
    asyncio.run(asyncio.wait_for(watch.run(), 120))
    ((code, message),) = told
    return code, message


async def never() -> object:
    return await asyncio.Event().wait()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_process_that_stands_still_is_given_up_and_named(start: Start, is_stopped: bool) -> None:
    busy, still = start(COMPUTE), start(COMPUTE if is_stopped else SLEEP)
    if is_stopped:
        os.kill(still, signal.SIGSTOP)
    code, reason = given_up([busy, still], ProbeTimes(0.05, 2.0, 600.0), never)
    assert code == "E5663" and reason.endswith(f": process {still} stands still")
    assert "explorer.engine_probe_timeout is 2 s" in reason and "with 3 samples under way" in reason


@pytest.mark.parametrize("program", [COMPUTE, COMPUTE_BELOW])
def test_a_process_that_computes_is_told_of_and_given_up_when_no_request_could_wait_for_it(
    start: Start, program: str, caplog: pytest.LogCaptureFixture
) -> None:
    pid = start(program)
    with caplog.at_level(logging.WARNING, "trinity"):
        code, reason = given_up([pid], SOON, never)
    assert code == "E5663" and "has not answered for 3 s" in reason and "longer than a request may take (3 s)" in reason
    lines = [record.getMessage() for record in caplog.records if "it computes" in record.getMessage()]
    assert [line.partition(" s (")[0] for line in lines] == [f"vLLM has not answered for {n}" for n in (1, 2)]
    assert all("with 3 samples under way" in line for line in lines)


def test_one_that_answers_is_asked_again_and_one_that_has_failed_is_told(start: Start) -> None:
    answers = iter(range(3))

    async def answer() -> object:
        for each in answers:
            return each
        raise RuntimeError("the core is dead")

    assert given_up([start(SLEEP)], SOON, answer) == ("E5660", "vLLM's process has ended or failed: the core is dead")
