"""Files of one JSON object a line that several actors append to.

Every change is made under an advisory lock on a file beside it, so that explorer and trainer may write from threads of
one process or from two processes. A line is appended whole. What a crash has torn at the end is set aside; a damaged
line inside stays where it is and is passed over. Files are read from their end, as far as is needed: neither time nor
memory of a start grows with them.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trinity.common.errors import DeadlineError
from trinity.utils.log import get_logger

LOCK_TIMEOUT_S = 30.0
LOCK_POLL_S = 0.002
BLOCK_BYTES = 1 << 16
NUM_KEPT = 256
TICK_S = 1e-6  # the least that lies between two lines of an actor

_logger = get_logger("monitor")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `path` as dictionaries; see `metrics_of`."""
    return list(metrics_of(path))


def metrics_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of `path` as dictionaries; none if the file is missing.

    A last line without an end, which may just be written, is left out; so is a damaged one, with a warning.
    """
    if not path.exists():
        return
    damaged = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            record = _record(line)
            if record is not None:
                yield record
            elif line.endswith(b"\n") and not _is_blank(line):
                damaged.append(number)
    if damaged:
        _logger.warning("%s: %d damaged lines were left out, the first is line %d", path, len(damaged), damaged[0])


def metrics_after(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines after a byte, and the byte after the last one.

    Damaged ones are left out, with a warning.

    Args:
        path: the file.
        offset: the byte after a line; 0: the beginning.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    lines = data[:end].splitlines(keepends=True)
    records = [record for line in lines if (record := _record(line)) is not None]
    num_damaged = len([line for line in lines if not _is_blank(line)]) - len(records)
    if num_damaged:
        _logger.warning("%s: %d damaged lines after byte %d were left out", path, num_damaged, offset)
    return records, offset + end


def last_records(path: Path, *, max_lines: int = NUM_KEPT) -> dict[str, dict[str, Any]]:
    """Return what each actor has of the last lines, by its name.

    Of a key the newest value counts: not every step has all of them.

    Args:
        path: the file; it need not exist.
        max_lines: lines that are read from the end.
    """
    found: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return found
    with open(path, "rb") as file:
        for _, line in itertools.islice(lines_from_end(file), max_lines):
            record = _record(line)
            if record is not None:
                actor = str(record.get("actor"))
                found[actor] = record | found.get(actor, {})
    return found


def lines_from_end(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and text of each line, last line first.

    The text includes the line feed.
    """
    position = file.seek(0, os.SEEK_END)
    rest = b""
    while position:
        size = min(BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        lines = _split(file.read(size) + rest)
        rest = lines[0]
        offset = position + sum(len(line) for line in lines)
        for line in reversed(lines[1:]):
            offset -= len(line)
            yield offset, line
    if rest:
        yield 0, rest


def _split(data: bytes) -> list[bytes]:
    """Return the lines of `data` with their line feeds.

    The last line may have none.
    """
    *whole, last = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if it is damaged or incomplete."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _looks_damaged(line: bytes) -> bool:
    """Whether a line is not an object.

    Only the beginning and the end of the line are checked.
    """
    return not (line.startswith(b"{") and line.endswith(b"}\n")) and not _is_blank(line)


def _is_blank(data: bytes) -> bool:
    """Whether a line is blank or holds zeros that never reached the disk."""
    return not data.strip(b"\0 \t\r\n")


class JsonLines:
    """One actor's view of a shared file.

    Args:
        path: the file; its folder is created.
        actor: whose lines this object appends and counts.

    Attributes:
        num_lines: of this actor; the `seq` of its next line.
    """

    def __init__(self, path: Path, actor: str) -> None:
        self.path = path
        self.actor = actor
        self._is_told = False
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            self._set_torn_tail_aside()
            last = next((record for _, record in self._own_from_end()), {"seq": -1})
        self.num_lines = last["seq"] + 1
        self._last_s = float(last.get("time") or 0.0)

    def now_s(self) -> float:
        """Return the time for the next line: later than that of all before.

        A clock that is set back changes nothing: what follows a line is told by it.
        """
        self._last_s = max(time.time(), self._last_s + TICK_S)
        return self._last_s

    def append(self, records: list[dict[str, Any]]) -> None:
        """Append one line per record.

        `actor` and a running number `seq` precede the record's own keys.

        Raises:
            OSError: the file cannot be written; nothing of `records` counts then.
        """
        lines = [
            json.dumps({"actor": self.actor, "seq": self.num_lines + i, **record}, allow_nan=False)
            for i, record in enumerate(records)
        ]
        data = "".join(line + "\n" for line in lines).encode()
        with locked(self.path):
            self._write_whole(data)
        self.num_lines += len(records)

    def _write_whole(self, data: bytes) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                data = b"\n" + data  # another actor was killed while it wrote: its half line takes no other with it
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
        """Keep the first `num_lines` lines of this actor and all of others.

        Return the last lines of this actor that remain, at most `NUM_KEPT`.

        The file is replaced in one step, so that a crash leaves the old one or the new one.
        """
        cut: int | None = None
        kept: list[dict[str, Any]] = []
        with locked(self.path):
            for offset, record in self._own_from_end():
                if record["seq"] >= num_lines:
                    cut = offset
                    continue
                kept.append(record)
                if len(kept) == NUM_KEPT:
                    break
            if cut is not None:
                self._rewrite(cut, num_lines)
        self.num_lines = kept[0]["seq"] + 1 if kept else 0
        return kept[::-1]

    def _rewrite(self, cut: int, num_lines: int) -> None:
        """Rewrite the file without this actor's lines from `num_lines` on.

        The first of these lines begins at offset `cut`.
        """
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as target, open(self.path, "rb") as source:
                _copy(source, target, cut)
                for line in source:
                    record = self._own(line)
                    if record is None or record["seq"] < num_lines:
                        target.write(line)
                target.flush()
                os.fsync(target.fileno())
            os.chmod(temporary, self.path.stat().st_mode & 0o777)
            os.replace(temporary, self.path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _set_torn_tail_aside(self) -> None:
        """Move the text after the last whole line to a file beside this one.

        Blank text is dropped.
        """
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            size = end = file.seek(0, os.SEEK_END)
            for offset, line in lines_from_end(file):
                if _record(line) is not None:
                    break
                end = offset
            file.seek(end)
            torn = file.read()
        if not _is_blank(torn):
            aside = self.path.with_name(f"{self.path.name}.damaged")
            with open(aside, "ab") as file:
                file.write(torn if torn.endswith(b"\n") else torn + b"\n")
            _logger.warning("%s: the damaged end (%d bytes) was moved to %s", self.path, size - end, aside)
        if end < size:
            os.truncate(self.path, end)

    def _own_from_end(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield offset and content of this actor's lines, last line first.

        A damaged line on the way is reported.
        """
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            for offset, line in lines_from_end(file):
                record = self._own(line)
                if record is not None:
                    yield offset, record
                elif not self._is_told and _looks_damaged(line):
                    self._is_told = True
                    _logger.warning("%s: the line at byte %d is damaged; it stays and is not read", self.path, offset)

    def _own(self, line: bytes) -> dict[str, Any] | None:
        """Return the content of a numbered line of this actor, None for any other."""
        # Most lines of other actors need not be read as JSON.
        record = _record(line) if json.dumps(self.actor).encode() in line else None
        is_own = record is not None and record.get("actor") == self.actor and isinstance(record.get("seq"), int)
        return record if is_own else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file of lines, waiting at most `LOCK_TIMEOUT_S`.

    Raises:
        DeadlineError: another process holds it for longer.
    """
    lock = path.with_name(f".{path.name}.lock")
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"timed out after {LOCK_TIMEOUT_S:g} s waiting for {lock}; "
                    "another process of this job holds it: end that process and run again",
                    code="E5302",
                )
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(handle)


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy the next `size` bytes."""
    while size:
        data = source.read(min(size, 16 * BLOCK_BYTES))
        target.write(data)
        size -= len(data)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
