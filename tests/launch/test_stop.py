"""Signals that ask for a stop: which, what the second one does, and what a process says that ends at once."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trinity.common.errors import ExitCode
from trinity.launch.stop import StopSignal
from trinity.utils.log import get_logger

ROOT = Path(__file__).parents[2]
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECOND = """
import os, signal, sys, time
from trinity.launch.stop import StopSignal
from trinity.runtime.process_exit import last_words
with StopSignal(grace_s=float(sys.argv[1])), last_words(lambda status: print(f"last word {status}")):
    for name in sys.argv[2:]:
        os.kill(os.getpid(), getattr(signal, name))
    time.sleep(30)
print("not reached")
"""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED),
        (signal.SIGTERM, ExitCode.TERMINATED),
        (signal.SIGHUP, ExitCode.TERMINATED),
    ],
)
def test_a_signal_asks_for_a_stop(number: signal.Signals, code: ExitCode) -> None:
    asked: list[bool] = []
    with StopSignal() as stop:
        stop.on_stop(lambda: asked.append(True))
        os.kill(os.getpid(), number)
        # A terminal that is closed sends several: the run must not take them for impatience.
        os.kill(os.getpid(), signal.SIGHUP)
    assert (stop.code, asked) == (code, [True])


class _Interrupted(io.FileIO):
    """A file in whose first write a signal arrives."""

    is_first = True

    def write(self, data: Any, /) -> int | None:
        if self.is_first:
            self.is_first = False
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(data)


def test_a_signal_in_the_middle_of_a_line_of_the_log_is_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    stream = io.TextIOWrapper(io.BufferedWriter(_Interrupted(file, "w")), encoding="utf-8")
    handler, log = logging.StreamHandler(stream), get_logger()
    log.addHandler(handler)
    try:
        with StopSignal() as stop:
            get_logger("trainer").warning("step 2")
    finally:
        log.removeHandler(handler)
        handler.close()
        stream.close()
    assert stop.code == ExitCode.TERMINATED
    lines = file.read_text().splitlines()
    assert lines[0] == "step 2" and lines[1].startswith("SIGTERM: ending the current step"), lines


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    assert stop.code is None and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("words", "code"),
    [(("60", "SIGHUP", "SIGTERM"), 143), (("60", "SIGTERM", "SIGINT"), 130), (("0.1", "SIGINT"), 130)],
)
def test_a_process_that_ends_at_once_says_its_last_words(words: tuple[str, ...], code: int) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", SECOND, *words], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (code, f"last word {code}\n"), ended.stderr
