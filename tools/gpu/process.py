"""A command in a process group of its own, with a deadline: whatever it does, it ends, and all that it started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.1
GRACE_S = 2.0
PR_SET_CHILD_SUBREAPER = 36
TAIL_LINES, TAIL_BYTES = 60, 64 * 2**10


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal), whether its time was over, seconds, last lines."""

    status: int
    is_late: bool
    seconds: float
    tail: list[str]


def adopt_orphans() -> bool:
    """Let processes whose parent ends become children of this one, so that `end_all` finds them; return whether."""
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    return False


def run(
    command: Sequence[str],
    *,
    deadline_s: float,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run `command` at most `deadline_s` seconds and end everything that it has started.

    Args:
        command: program and arguments.
        deadline_s: seconds that it may take.
        log: file that gets its output.
        env: its environment.
        cwd: its folder.
        tick: called every second while it runs.
    """
    started = ticked = time.monotonic()
    before = descendants(os.getpid())
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command), cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    is_late = False
    try:
        while process.poll() is None and not is_late:
            time.sleep(POLL_S)
            now = time.monotonic()
            is_late = now - started > deadline_s
            if now - ticked > 1.0:
                ticked = now
                tick()
    finally:
        end_all(process, spared=before)
    return Ended(process.wait(), is_late, time.monotonic() - started, tail(log))


def end_all(process: subprocess.Popen[bytes], *, spared: frozenset[int] = frozenset()) -> None:
    """End a process, its group and all descendants of this process but `spared`; what does not go in time is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        for pid in descendants(os.getpid()) - spared:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until:
            process.poll()
            left = descendants(os.getpid()) - spared
            if not left:
                return
            time.sleep(POLL_S / 2)


def descendants(pid: int) -> frozenset[int]:
    """Return the living processes that `pid` has started, directly or not, and those that it has adopted."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(file.parent.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        new = set(children.get(todo.pop(), [])) - found
        found |= new
        todo += new
    return frozenset(found)


def tail(file: Path) -> list[str]:
    """Return the last lines of a file."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - TAIL_BYTES))
        text = opened.read().decode(errors="replace")
    return [line.rpartition("\r")[2] for line in text.splitlines()][-TAIL_LINES:]
