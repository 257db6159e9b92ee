"""`python -m trinity ...` for tests, in a process that has the imports of every run behind it.

A run of a few seconds spends half of its time on importing torch, transformers and the rest. Here one process per
session of tests, which is no fork of pytest, does so once; each run is a fork of it (`tests.prepared_server`), a
process with its own environment, folder and output. Whatever is read before `main` is the same in all of them, so
where a run asks for other such variables, or for what a fork cannot give, it is an ordinary process. A script is given
`tests.prepared_command` in place of `trinity`.

Forks of one server have Python's hash seed in common. A test that two runs give the same bits has one of them started
with `is_real`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity.runtime.allocator import allocator_variables
from trinity.utils.gpu import device_count

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 270.0  # of a run that must end, below that of a test: a busy machine takes its time
# Read by a run in `main` or later, or by nobody; Ray is imported later. What imports read is unknown, so every other
# variable counts as read.
READ_LATE = ("TRINITY_", "PYTEST_", "RAY_")
SET_BY_SHELLS = ("_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL")
# Set by the import of libraries where it is missing; so does the import in a run.
SET_BY_LIBRARIES = ("MPLBACKEND", "RAY_CLIENT_MODE", "TORCHINDUCTOR_CACHE_DIR")
# Forks of a process that has asked for CUDA cannot use it.
CAN_FORK = hasattr(os, "pidfd_open") and not device_count()
_AT_FIRST = dict(os.environ)  # before tests change it
# What a process ignores, those that it starts ignore; but for the two that Python ignores by itself.
SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}


def command(*words: str) -> list[str]:
    """Return the command line of `trinity` with the arguments `words`."""
    return [sys.executable, "-m", "trinity", *words]


def start(
    words: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
    output: Any = None,
    is_real: bool = False,
) -> subprocess.Popen[str]:
    """Start `python -m trinity` in a session of its own.

    Args:
        words: its arguments.
        cwd: folder that it runs in.
        environment: variables besides those that it inherits.
        inherited: these; None: those of this process.
        output: file of what it prints; None: a pipe.
        is_real: it is an ordinary process, that imports what it needs.
    """
    variables = variables_of(os.environ if inherited is None else inherited) | dict(environment or {})
    if is_real or not may_be_forked(variables):
        return subprocess.Popen(
            command(*words),
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    if list(words[:1]) == ["run"]:  # with which it would be begun again, all imports included
        variables |= allocator_variables(variables)
    if output is not None:
        return PreparedProcess(words, cwd, variables, output.fileno())
    reader, writer = os.pipe()
    try:
        return PreparedProcess(words, cwd, variables, writer, reader)
    finally:
        os.close(writer)


def finish(words: Sequence[str], *, timeout_s: float = DEADLINE_S, **how: Any) -> tuple[int, str]:
    """Start `python -m trinity`, see `start`; return its exit status and what it has printed.

    Raises:
        subprocess.TimeoutExpired: it lives after `timeout_s` seconds, and is killed.
    """
    process = start(words, **how)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException:
        process.kill()
        process.communicate(timeout=60)
        raise
    assert process.returncode is not None
    return process.returncode, output


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what runs are started with: one thread, this tree's package, no failpoint."""
    folders = dict.fromkeys([str(ROOT), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))])
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders), "TRINITY_FAILPOINTS": ""}
    kept = {name: value for name, value in environment.items() if name not in SET_BY_LIBRARIES or name in _AT_FIRST}
    return {**kept, **own}


def read_early(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be read before `main`."""
    return {
        name: value for name, value in variables.items() if not name.startswith(READ_LATE) and name not in SET_BY_SHELLS
    }


def may_be_forked(variables: Mapping[str, str]) -> bool:
    """Return whether a fork of the server is as an ordinary process with these variables."""
    return CAN_FORK and read_early(variables) == read_early(variables_of(_AT_FIRST))


class _Server:
    """The process that forks, and the socket on which it is told what."""

    def __init__(self) -> None:
        variables = read_early(variables_of(_AT_FIRST))
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lock = threading.Lock()
        with theirs:
            self.process = subprocess.Popen(  # it ends with this process, which has the only other end of the socket
                [sys.executable, "-m", "tests.prepared_server", str(theirs.fileno())],
                cwd=ROOT,
                env=variables | allocator_variables(variables),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

        self.owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Let the server end, and wait for it; a fork of the process that has started it does not."""
        if os.getpid() == self.owner:
            with contextlib.suppress(OSError):  # it is gone
                self.socket.shutdown(socket.SHUT_RDWR)
            self.process.wait(60)

    def fork(self, order: dict[str, Any], output: int) -> tuple[int, socket.socket]:
        """Return the process id of a fork, and the socket that its status comes from."""
        ours, theirs = socket.socketpair()
        with theirs, self.lock:
            text = json.dumps(order).encode()
            self.socket.send(len(text).to_bytes(8, "big"))
            socket.send_fds(self.socket, [b"fds"], [output, theirs.fileno()])
            for begin in range(0, len(text), 65536):
                self.socket.send(text[begin : begin + 65536])
        pid = int.from_bytes(ours.recv(4), "big")
        assert pid, "the server of prepared processes is gone; its last words are on standard error"
        return pid, ours


_server = functools.cache(_Server)


class PreparedProcess(subprocess.Popen[str]):
    """A fork of the server, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, words: Sequence[str], cwd: Path, variables: Mapping[str, str], output: int, reader: int | None = None
    ) -> None:
        self._child_created = False  # of this process: there is nothing for the interpreter to wait for
        self.args = command(*words)
        self.returncode: int | None = None
        self.stdin = self.stderr = None
        self.stdout = None if reader is None else open(reader, encoding=None)  # noqa: SIM115 - as Popen's, closed by its user
        self._lock = threading.Lock()
        self._read: list[bytes] = []
        ignored = [int(each) for each in SIGNALS if signal.getsignal(each) == signal.SIG_IGN]
        order = {"command": self.args, "cwd": str(cwd), "environment": dict(variables), "ignored": ignored}
        self.pid, self._status = _server().fork(order, output)

    def poll(self) -> int | None:
        """Return the exit status, None while the process lives; afterwards its id may be another's."""
        with self._lock:
            if self.returncode is None and _is_readable(self._status, 0):
                data = self._status.recv(4)
                self._status.close()
                assert data, "the server of prepared processes is gone"
                self.returncode = int.from_bytes(data, "big", signed=True)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when the process has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._lock:
                is_over = self.returncode is not None
            if not is_over:
                _is_readable(self._status, left)
        return status

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Return what the process prints until its output is closed, and None; then it has ended.

        Raises:
            subprocess.TimeoutExpired: not within `timeout` seconds; a later call returns what was read as well.
        """
        assert input is None, "its input is empty"
        end = None if timeout is None else time.monotonic() + timeout
        while self.stdout is not None and not self.stdout.closed:
            left = None if end is None else end - time.monotonic()
            if not _is_readable(self.stdout, left):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0, b"".join(self._read))
            if data := os.read(self.stdout.fileno(), 65536):
                self._read.append(data)
            else:
                self.stdout.close()
        self.wait(None if end is None else max(end - time.monotonic(), 0.0))
        text = b"".join(self._read).decode().replace("\r\n", "\n").replace("\r", "\n")
        return text if self.stdout is not None else None, None

    def send_signal(self, sig: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _is_readable(file: Any, timeout: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        return bool(selector.select(None if timeout is None else max(timeout, 0.0)))
