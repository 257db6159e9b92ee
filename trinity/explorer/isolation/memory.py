"""A limit of a process's memory, kept by another process.

The process cannot keep it itself: what allocates may hold the interpreter's lock until the machine has nothing left.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

POLL_S = 0.25
"""Seconds between two looks at the memory: a look takes some milliseconds, which the process does not pay."""
SETTING = "explorer.runner_memory_bytes"
OVER = f"it took more memory than {SETTING}"
"""Beginning of the line that the watcher writes to the standard error, before it kills the process."""


def limit_memory(pid: int, limit_bytes: int) -> None:
    """Let a further process kill process `pid` when it takes more than this.

    Counted is the resident memory of the process and of all that it started, shared pages each time. The watcher ends
    with the process.
    """
    # As a file, and safely (-P): it imports psutil and nothing of the run.
    subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__)), str(pid), str(limit_bytes)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def watch(pid: int, limit_bytes: int) -> None:
    """Wait for the end of a process, or end it above its limit."""
    try:
        process = psutil.Process(pid)
        while not _has_ended(process):
            family = [
                process,
                *(child for child in process.children(recursive=True) if child.pid != psutil.Process().pid),
            ]
            used = sum(_resident(one) for one in family)
            if used > limit_bytes:
                sys.stderr.write(f"{OVER} ({limit_bytes}): {used} bytes\n")
                sys.stderr.flush()
                for one in reversed(family):
                    _kill(one)
                return
    except psutil.NoSuchProcess:
        return


def _has_ended(process: psutil.Process) -> bool:
    try:
        process.wait(POLL_S)
    except psutil.TimeoutExpired:
        return False
    return True


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]))
