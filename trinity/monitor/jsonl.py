"""Files of one JSON object a line that several actors append to.

Every change is made under an advisory lock on a file beside it, so that explorer and trainer may write from threads of
one process or from two processes. A line is appended whole; a last line that a crash has torn is cut.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trinity.common.errors import DeadlineError

LOCK_TIMEOUT_S = 30.0
LOCK_POLL_S = 0.002


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `path` as dictionaries, without a torn last one; none if the file is missing."""
    if not path.exists():
        return []
    return [json.loads(line) for line in _whole_lines(path.read_bytes())]


def _whole_lines(data: bytes) -> list[bytes]:
    """Return the lines that end in a line feed and hold a JSON object; the torn last one is not among them."""
    lines = data.split(b"\n")[:-1]
    while lines and not _is_object(lines[-1]):
        lines.pop()
    return lines


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class JsonLines:
    """One actor's view of a shared file.

    Args:
        path: the file; its folder is created.
        actor: whose lines this object appends and counts.
    """

    def __init__(self, path: Path, actor: str) -> None:
        self.path = path
        self.actor = actor
        self._lock_path = path.with_name(f".{path.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock():
            self._cut_torn_tail()
            self.num_lines = sum(self._is_own(line) for line in read_metrics(path))

    def append(self, records: list[dict[str, Any]]) -> None:
        """Append one line a record, with `actor` and a running number `seq` before its own keys.

        Raises:
            OSError: the file cannot be written; nothing of `records` counts then.
        """
        lines = [
            json.dumps({"actor": self.actor, "seq": self.num_lines + i, **record}, allow_nan=False)
            for i, record in enumerate(records)
        ]
        data = "".join(line + "\n" for line in lines).encode()
        with self._lock():
            self._write_whole(data)
        self.num_lines += len(records)

    def _write_whole(self, data: bytes) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(handle, view) :]
            except OSError:
                # A disk that fills in the middle of a line would leave half of it for the next writer to append to.
                os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)

    def truncate(self, num_lines: int) -> list[dict[str, Any]]:
        """Keep the first `num_lines` lines of this actor and all lines of others; return the own ones kept.

        The file is replaced in one step, so that a crash leaves the old one or the new one.
        """
        seen = 0

        def is_kept(record: dict[str, Any]) -> bool:
            nonlocal seen
            seen += self._is_own(record)
            return not self._is_own(record) or seen <= num_lines

        with self._lock():
            kept = self._rewrite(is_kept)
        own = [record for record in kept if self._is_own(record)]
        self.num_lines = len(own)
        return own

    def _rewrite(self, is_kept: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Replace the file by its lines that `is_kept` accepts; return them."""
        if not self.path.exists():
            return []
        lines = [(line, json.loads(line)) for line in _whole_lines(self.path.read_bytes())]
        kept = [(line, record) for line, record in lines if is_kept(record)]
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(b"".join(line + b"\n" for line, _ in kept))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, self.path.stat().st_mode & 0o777)
            os.replace(temporary, self.path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        return [record for _, record in kept]

    def _cut_torn_tail(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        size = sum(len(line) + 1 for line in _whole_lines(data))
        if size < len(data):
            os.truncate(self.path, size)

    def _is_own(self, record: dict[str, Any]) -> bool:
        return record.get("actor") == self.actor

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the file, waiting at most `LOCK_TIMEOUT_S`.

        Raises:
            DeadlineError: another process holds it for longer.
        """
        handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not _try_lock(handle):
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"timed out after {LOCK_TIMEOUT_S:g} s waiting for {self._lock_path}; "
                        "another process of this job holds it: end that process and run again",
                        code="E5302",
                    )
                time.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
