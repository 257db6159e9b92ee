"""A limit of a process's memory, kept by another process.

The process cannot keep it itself: what allocates may hold the interpreter's lock until the machine has nothing left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

POLL_S = 0.25
"""Seconds between two looks at the memory: a look takes some milliseconds, which the process does not pay."""
MAX_ROUNDS = 100
"""How often a process's family is looked at until none of it is left; each time it may have started others."""
SETTING = "explorer.runner_memory_bytes"
OVER = f"it took more memory than {SETTING}"
"""Beginning of the line that the watcher writes to the standard error, before it kills the process."""


def limit_memory(pid: int, limit_bytes: int) -> None:
    """Let a further process kill process `pid` when it takes more than this.

    Counted is the resident memory of the process and of all that it started, shared pages each time. What has left its
    parent counts if the process adopts orphans (`adopt_orphans`). The watcher ends with the process, and first kills
    what it has seen of its family.
    """
    # As a file, and safely (-P): it imports psutil and nothing of the run.
    # In a session of its own: what kills the process and its group leaves it, so that it can kill those outside of it.
    subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__)), str(pid), str(limit_bytes)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def watch(pid: int, limit_bytes: int) -> None:
    """Wait for the end of a process, or end it above its limit."""
    family: list[psutil.Process] = []
    try:
        process = psutil.Process(pid)
        while not _has_ended(process):
            family = _descendants(process)
            used = sum(_resident(one) for one in (process, *family))
            if used > limit_bytes:
                sys.stderr.write(f"{OVER} ({limit_bytes}): {used} bytes\n")
                sys.stderr.flush()
                _end(process)
    except psutil.NoSuchProcess:
        pass
    for one in family:  # in sessions of their own, they outlive the process that is killed
        _kill(one)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    own = os.getpid()  # it is a child of the process
    return [child for child in process.children(recursive=True) if child.pid != own]


def _end(process: psutil.Process) -> None:
    """Kill a process after all that it started.

    It is stopped meanwhile, so that it starts nothing and adopts what those that are killed leave.
    """
    process.suspend()
    for _ in range(MAX_ROUNDS):
        alive = [one for one in _descendants(process) if _is_running(one)]
        if not alive:
            break
        for one in alive:
            _kill(one)
    process.kill()


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _has_ended(process: psutil.Process) -> bool:
    try:
        process.wait(POLL_S)
    except psutil.TimeoutExpired:
        return not _is_running(process)  # its parent may not have asked for its status yet
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
