"""Programs of a model, each in a process of its own without rights.

The program has limits of time, memory and output. It reads Python's own files and writes none, and reaches neither the
network nor another process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from trinity.common.errors import EnvironmentProblem
from trinity.common.rewards.code_worker import BEGUN, CHECK, MARK_BYTES, PROGRAM
from trinity.common.rewards.sandbox import LONGEST_S, READ_BYTES, REAP_DEADLINE_S, CallFailed, CallTimedOut, timed_out

WORKER = Path(__file__).with_name("code_worker.py")
TIMEOUT_S = 10.0
MEMORY_BYTES = 512 << 20
MAX_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True)
class Ran:
    """The program ended by itself, or by a signal.

    Attributes:
        stdout: what it wrote.
        stderr: likewise, to the standard error.
        status: exit status; negative: the signal that ended it.
        is_complete: program and check ran to their ends. A program that leaves before does not pass its check.
    """

    stdout: str
    stderr: str
    status: int
    is_complete: bool


CodeOutcome = Ran | CallTimedOut | CallFailed


def run_code(
    code: str,
    *,
    check: str = "",
    stdin: str = "",
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = MEMORY_BYTES,
) -> CodeOutcome:
    """Return what happened to a Python program.

    It never raises for what the program did, and never takes much longer than `timeout_s`.

    Args:
        code: the program.
        check: code that runs after it and sees its names.
        stdin: what it reads.
        timeout_s: seconds after which it is killed, > 0.
        memory_bytes: address space that it may have, the interpreter's included.

    Raises:
        EnvironmentProblem: this machine cannot contain a program (E3305).
    """
    timeout_s = min(timeout_s, LONGEST_S)
    with tempfile.TemporaryDirectory(prefix="trinity_code_", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        (place / PROGRAM).write_text(code, encoding="utf-8", errors="replace")
        mark = secrets.token_hex(MARK_BYTES // 2).encode()
        (place / CHECK).write_bytes(mark + check.encode("utf-8", "replace"))
        (place / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
        heard, told = socket.socketpair()  # what was told cannot be taken back, as from a pipe
        settings = json.dumps({"timeout_s": timeout_s, "memory_bytes": memory_bytes, "told": told.fileno()})
        try:
            with (place / "stdin").open("rb") as given:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(WORKER), settings],
                    cwd=folder,
                    env=environment,
                    pass_fds=(told.fileno(),),
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    bufsize=0,
                )
        finally:
            told.close()
        with heard, heard.makefile("rb") as told_by_worker:
            outcome = _outcome(process, timeout_s)
            said = told_by_worker.read(len(BEGUN) + len(mark) + 1)
    if isinstance(outcome, Ran) and said.startswith(BEGUN):  # told before the program began, which cannot deny it
        return replace(outcome, is_complete=said == BEGUN + mark)
    if isinstance(outcome, Ran):
        raise EnvironmentProblem(
            f"this machine cannot contain a program that a model wrote ({outcome.stderr[-300:]}); run where the kernel "
            "has Landlock and seccomp: Linux 5.13 or newer on x86-64 or AArch64",
            code="E3305",
        )
    return outcome


def _outcome(process: subprocess.Popen[bytes], timeout_s: float) -> CodeOutcome:
    assert process.stdout is not None and process.stderr is not None, "both are pipes"
    written = {process.stdout: b"", process.stderr: b""}
    begin = time.monotonic()
    end = begin + timeout_s
    left = selectors.PollSelector()  # `select` knows no descriptor above 1023
    for pipe in written:
        left.register(pipe, selectors.EVENT_READ, pipe)
    try:
        while left.get_map():
            ready = left.select(max(0.0, end - time.monotonic()))
            if not ready or time.monotonic() > end:  # whatever it still writes
                _kill(process)
                return timed_out(timeout_s, since=begin)
            for key, _ in ready:
                data = os.read(key.fd, READ_BYTES)
                written[key.data] += data
                if not data:
                    left.unregister(key.data)
            if sum(map(len, written.values())) > MAX_OUTPUT_BYTES:
                return CallFailed(f"the program wrote more than {MAX_OUTPUT_BYTES} bytes")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        if process.returncode in (None, -signal.SIGXCPU):
            _kill(process)
            return timed_out(timeout_s, since=begin)
        stdout, stderr = (text.decode("utf-8", "replace") for text in written.values())
    finally:
        _end(process)
    return Ran(stdout, stderr, process.returncode, is_complete=False)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAP_DEADLINE_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
