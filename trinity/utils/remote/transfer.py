"""One file from its store to the disk: continued, complete and verified."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from trinity.utils.disk import is_full
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger
from trinity.utils.memory import shown_bytes
from trinity.utils.remote.addresses import shown
from trinity.utils.remote.errors import AddressError, Changed, Interrupted, full
from trinity.utils.remote.patience import TIMEOUT_ENV_VAR, Patience
from trinity.utils.remote.sources import RemoteFile, Source

PART = ".part"
_TELL_S = 10.0
_BLOCK_BYTES = 1 << 20
_logger = get_logger("remote")


def transfer(source: Source, file: RemoteFile, target: Path, patience: Patience) -> str:
    """Copy a file; return the SHA-256 of its content in hexadecimal digits.

    It is written to `<target>.part`, which a later call continues, and gets its name when it is whole.

    Raises:
        AddressError: it cannot be fetched (E3610 to E3614), is not whole (E3615), or has another hash than the store
            states (E3616).
        Changed: the store has another content now.
    """
    part = target.with_name(target.name + PART)
    what = shown(source.address) if file.name == target.name else f"{file.name} of {shown(source.address)}"
    target.parent.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    while True:
        try:
            _download(source, file, part, what, patience)
        except OSError as error:
            if is_full(error):
                raise full(what, place=part.parent) from error
            raise
        _check_same(source, file, part, what, patience)
        found = digests(part)
        wrong = [each for each in file.hashes if found[each.algorithm] != each.digest]
        if not wrong or (found["sha256"] in seen and not any(each.is_certain for each in wrong)):
            break
        part.unlink()
        if seen:
            raise AddressError(
                f"{what} came with {wrong[0].algorithm} {found[wrong[0].algorithm]}, and its store states "
                f"{wrong[0].digest}; what is stored there is damaged, or something on the way changes it",
                code="E3616",
            )
        seen.add(found["sha256"])
        _logger.warning("%s: its %s is not the one that its store states; fetched again", what, wrong[0].algorithm)
    failpoint("remote.before_rename")
    os.replace(part, target)
    return found["sha256"]


def digests(path: Path) -> dict[str, str]:
    """Return the hashes of a file in hexadecimal digits, by algorithm."""
    made = {"sha256": hashlib.sha256(), "md5": hashlib.md5(usedforsecurity=False)}
    with open(path, "rb") as file:
        while piece := file.read(_BLOCK_BYTES):
            for each in made.values():
                each.update(piece)
    return {name: each.hexdigest() for name, each in made.items()}


def _download(source: Source, file: RemoteFile, part: Path, what: str, patience: Patience) -> None:
    """Write the whole content to `part`, continuing what is there."""
    number, best, told = 0, 0, _Progress(what, file.size)
    with open(part, "ab") as output:
        while True:
            offset = output.seek(0, os.SEEK_END)
            if file.size is not None and offset > file.size:
                offset = output.truncate(0)
            try:
                if file.size is None or offset < file.size or not offset:
                    offset = _write(output, _pieces(source, file, offset, patience.timeout_s), told)
                if file.size is None or offset == file.size:
                    output.flush()
                    os.fsync(output.fileno())
                    return
                raise Interrupted(f"it ends after {offset} of {file.size} bytes")
            except OSError as error:
                if is_full(error):
                    raise
                failure: Exception = error
            except Exception as error:  # noqa: BLE001 - the clients of stores have no common class of errors
                failure = error
            reached = output.seek(0, os.SEEK_END)
            number, best = 1 if reached > best > 0 else number + 1, max(best, reached)
            if number >= patience.attempts and isinstance(failure, Interrupted) and file.size is not None:
                raise AddressError(
                    f"{what} is not whole: {failure}, tried {number} times; run the same command again, which "
                    "continues with what has come, or put the file there again",
                    code="E3615",
                ) from failure
            patience.failed(what, failure, number)


def _write(output: IO[bytes], pieces: Iterator[tuple[int, bytes]], told: _Progress) -> int:
    """Append pieces at their places; return the length of the file."""
    length = output.tell()
    for place, piece in pieces:
        if place != length:  # the store reads from the beginning only
            output.truncate(place)
            output.seek(place)
        output.write(piece)
        failpoint("remote.after_piece")
        length = place + len(piece)
        told(length)
    output.flush()
    return length


def _pieces(source: Source, file: RemoteFile, offset: int, timeout_s: float) -> Iterator[tuple[int, bytes]]:
    """Yield what `source.read` yields, each piece within `timeout_s`."""
    made: queue.Queue[Any] = queue.Queue(maxsize=8)
    ended = threading.Event()

    def put(each: Any) -> None:
        while not ended.is_set():
            try:
                return made.put(each, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for each in source.read(file, offset):
                put(each)
                if ended.is_set():
                    return
            put(None)
        except Exception as error:  # noqa: BLE001 - it is raised where the pieces are taken
            put(error)

    threading.Thread(target=work, daemon=True, name="remote").start()
    try:
        while True:
            try:
                each = made.get(timeout=timeout_s)
            except queue.Empty:
                raise TimeoutError(f"no answer in {timeout_s:g} s ({TIMEOUT_ENV_VAR} says how long)") from None
            if each is None:
                return
            if isinstance(each, Exception):
                raise each
            yield each
    finally:
        ended.set()


def _check_same(source: Source, file: RemoteFile, part: Path, what: str, patience: Patience) -> None:
    """Compare what the store tells now with what it told before.

    Raises:
        Changed: they differ; what was written is removed.
    """
    now = patience.call(what, lambda: source.again(file))
    if not now.is_same(file):
        part.unlink()
        raise Changed(what)


class _Progress:
    """Logs how far a transfer is, every ten seconds."""

    def __init__(self, what: str, size: int | None) -> None:
        self.what, self.size = what, size
        self._next = time.monotonic() + _TELL_S

    def __call__(self, length: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _TELL_S
        whole = "" if self.size is None else f" of {shown_bytes(self.size)}"
        _logger.info("%s: %s%s", self.what, shown_bytes(length), whole)
