"""Locks of files, exclusive to one process or shared.

The system releases a lock when its process ends, in whatever way.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

# A look at a lock (`is_held`) takes it for an instant; whoever wants it tries again for this long.
GRACE_S = 0.5
_POLL_S = 0.02


class FileLock:
    """A lock that this process holds until `release` or its end.

    Args:
        path: the file; its folder exists.
        is_shared: several processes may hold it at once, none exclusively.
        note: a line that `holder_of` shows to those who are refused; a shared holder writes none.

    Raises:
        BlockingIOError: somebody else holds it.
    """

    def __init__(self, path: Path, *, is_shared: bool = False, note: str = "") -> None:
        self.path = path
        self._file = _open(path)
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        deadline = time.monotonic() + GRACE_S
        while True:
            try:
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    self._file.close()
                    raise
                time.sleep(_POLL_S)
        if not is_shared:
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            self._file.truncate(0)
            self._file.write(f"pid {os.getpid()} on {socket.gethostname()} since {since}\n{note}\n")
            self._file.flush()

    def release(self) -> None:
        """Give the lock free; a second call does nothing."""
        self._file.close()


def part_lock(job_dir: Path, part: str) -> Path:
    """Return the file whose lock a live part of a job holds."""
    return job_dir / "locks" / f"{part}.lock"


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of `path`."""
    if not path.exists():
        return False
    with _open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def holder_of(path: Path) -> str:
    """Return the present or last exclusive holder of the lock of `path`.

    The text has process, machine and time.
    """
    return (_lines(path) or ["unknown"])[0]


def note_of(path: Path) -> str:
    """Return the note of the last exclusive holder of `path`, if any."""
    lines = _lines(path)
    return lines[1] if len(lines) > 1 else ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _open(path: Path) -> IO[str]:
    return open(path, "a+", encoding="utf-8")
