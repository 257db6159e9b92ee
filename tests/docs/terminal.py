"""A second terminal, in which a reader starts what serves or runs until it is told to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.docs.followed import programs

START_S, END_S = 200.0, 100.0
TAKEN = re.compile("E3431|in use")  # by the same test of somebody else, for some seconds


class Terminal:
    """A command of a page in a terminal of its own.

    Args:
        line: the command.
        folder: in which it runs.
        variables: besides those of the test.
    """

    def __init__(self, line: str, folder: Path, variables: dict[str, str]) -> None:
        number, name = tempfile.mkstemp(prefix="trinity-terminal-", suffix=".log")
        self._output = Path(name)
        with open(number, "w") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", line], cwd=folder, env=os.environ | variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, number)
                self._process.wait(END_S)
        self._process.wait()
        self._output.unlink()

    def printed(self) -> str:
        """Return what is on its screen."""
        return self._output.read_text()

    def status(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._process.poll()

    def ended(self) -> int:
        """Return the exit status, when it has ended."""
        return self._process.wait(END_S)

    def interrupt(self) -> int:
        """Press Ctrl-C; return the exit status."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self.ended()


@contextmanager
def served(line: str, folder: Path, address: str, **variables: str) -> Iterator[str]:
    """Start a server as a page has it; yield the address that it tells, the first group of a pattern; end it."""
    end = time.monotonic() + START_S
    with programs() as path:
        while True:
            with Terminal(line, folder, {"PATH": path} | variables) as terminal:
                while (found := re.search(address, terminal.printed())) is None and terminal.status() is None:
                    assert time.monotonic() < end, terminal.printed()
                    time.sleep(0.05)
                if found is not None:
                    yield found[1]
                    terminal.interrupt()
                    return
                assert TAKEN.search(terminal.printed()) and time.monotonic() < end, terminal.printed()
            time.sleep(1)


def answer(address: str, *, is_whole: Callable[[httpx.Response], bool] = lambda _: True) -> httpx.Response:
    """Return what is served there, once it is, and whole: a server may read its files after its start."""
    end = time.monotonic() + START_S
    while True:
        with suppress(httpx.TransportError):
            response = httpx.get(address, timeout=30.0)
            if response.status_code < 500 and is_whole(response):
                return response
        assert time.monotonic() < end, address
        time.sleep(0.1)
