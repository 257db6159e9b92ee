"""Local copies of files elsewhere, kept by address and version.

`<cache>/remote/<address>/<version>/<name>` holds a file, or the files of a folder; the version is a hash of what the
store tells of them. `<version>.json` beside it says what the copy consists of; without it the copy is not whole. So a
copy in use is never written to, and an interrupted download continues where it ended.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trinity.common.errors import EnvironmentProblem
from trinity.utils.caches import cache_dir
from trinity.utils.disk import write_atomically
from trinity.utils.locks import FileLock, holder_of
from trinity.utils.log import get_logger
from trinity.utils.memory import shown_bytes
from trinity.utils.remote.addresses import base_name, identity, is_safe_name, shown
from trinity.utils.remote.errors import AddressError, Changed, full
from trinity.utils.remote.patience import Patience
from trinity.utils.remote.sources import RemoteFile, Source, source_of
from trinity.utils.remote.transfer import PART, digests, transfer

UNREACHABLE = "E3614"
_MAX_CHANGES = 3
_POLL_S = 0.2
_logger = get_logger("remote")
_in_use: dict[Path, FileLock] = {}
_using = threading.Lock()


@dataclass(frozen=True)
class Copy:
    """A whole copy on this machine.

    Attributes:
        address: where it is from, without secrets.
        path: the file, or the folder.
        sha256: of the file; of a folder that of the list of its files and their hashes.
    """

    address: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class _Place:
    """Where the copies of an address are."""

    address: str
    patterns: Sequence[str] | None
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", cache_dir("remote") / identity(self.address))

    def record(self, version: str) -> Path:
        return self.root / f"{version}.json"

    def folder(self, version: str, *, is_folder: bool) -> Path:
        return self.root / version / base_name(self.address) if is_folder else self.root / version

    def is_covered(self, document: Any) -> bool:
        """Return whether a copy has all files that are wanted."""
        has = document["patterns"]
        return has is None or (self.patterns is not None and set(self.patterns) <= set(has))


def fetch(
    address: str, *, patterns: Sequence[str] | None = None, key: str | None = None, patience: Patience | None = None
) -> Copy:
    """Return a whole copy of what is at an address now.

    What is missing of it is downloaded, once also where several ask. This process keeps other ones from removing it.

    Args:
        address: of a file or a folder; `is_remote` holds.
        patterns: of a folder, the names of the files to copy, such as `*.json`; None: all.
        key: of the configuration, for messages.
        patience: bounds every wait; None: the default.

    Raises:
        AddressError: it cannot be fetched; the code says why.
    """
    patience = patience or Patience()
    place = _Place(address, tuple(patterns) if patterns is not None else None)
    try:
        source = patience.call(shown(address), lambda: source_of(address, patience, key=key))
        place.root.mkdir(parents=True, exist_ok=True)
        return _fetched(place, source, patience)
    except AddressError as error:
        kept = kept_copy(address, patterns=patterns) if error.code == UNREACHABLE else None
        if kept is None:
            raise
        _use(place.root / f"{kept.path.relative_to(place.root).parts[0]}.lock")
        _logger.warning("%s; the copy that was fetched before is used: %s", error.args[0], kept.path)
        return kept
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the copy of {shown(address)} under {place.root}: {error.strerror or error}; let "
            "TRINITY_CACHE_DIR name a folder that can be written",
            code="E3601",
        ) from error


def kept_copy(address: str, *, patterns: Sequence[str] | None = None) -> Copy | None:
    """Return the newest whole copy on this machine; None: there is none.

    Nothing is asked of the network.
    """
    place = _Place(address, tuple(patterns) if patterns is not None else None)
    records = sorted(place.root.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for record in records:
        found = _whole(place, record.stem)
        if found is not None:
            return found
    return None


def _fetched(place: _Place, source: Source, patience: Patience) -> Copy:
    what = shown(place.address)
    for _ in range(_MAX_CHANGES):
        is_folder, listed = patience.call(what, source.listing)
        files = _chosen(place, listed) if is_folder else listed
        version = _version(files)
        # Held before it is looked for, so that nobody removes it in between.
        _use(place.root / f"{version}.lock")
        found = _whole(place, version)
        if found is not None:
            os.utime(place.record(version))
            return found
        with _alone(place, patience):
            found = _whole(place, version)
            if found is not None:
                return found
            try:
                return _download(place, source, files, version, is_folder=is_folder, patience=patience)
            except Changed:
                _logger.warning("%s changed while it was copied; begun again", what)
                shutil.rmtree(place.root / version, ignore_errors=True)
    raise AddressError(
        f"{what} changed {_MAX_CHANGES} times while it was copied; wait until whoever writes it is done, or give the "
        "address of a finished copy",
        code="E3617",
    )


def _chosen(place: _Place, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return the files of a folder that are to be copied, by name.

    Raises:
        AddressError: a name would leave the folder (E3618), or there is no file (E3619).
    """
    what, wanted = shown(place.address), place.patterns
    chosen = [file for file in files if wanted is None or _is_wanted(file.name, wanted)]
    names = {file.name for file in chosen}
    for file in chosen:
        above = {file.name[:end] for end, letter in enumerate(file.name) if letter == "/"}
        if not is_safe_name(file.name) or above & names or len(names) != len(chosen):
            raise AddressError(
                f"{what} lists {file.name!r}, which is no name of a file in the folder that it is copied to; rename it "
                "there, or give the address of another folder",
                code="E3618",
            )
    if not chosen:
        which = "no file" if wanted is None else f"no file named {', '.join(wanted)}"
        raise AddressError(f"{what} has {which}; look at the address", code="E3619")
    return sorted(chosen, key=lambda file: file.name)


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _version(files: Sequence[RemoteFile]) -> str:
    told = [[file.name, file.size, sorted(file.marks.items())] for file in files]
    return hashlib.sha256(json.dumps(told).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _download(
    place: _Place, source: Source, files: Sequence[RemoteFile], version: str, *, is_folder: bool, patience: Patience
) -> Copy:
    folder = place.folder(version, is_folder=is_folder)
    folder.mkdir(parents=True, exist_ok=True)
    _check_room(place, files, folder)
    what, begun = shown(place.address), time.monotonic()
    size = sum(file.size or 0 for file in files)
    _tell_change(place, version)
    _logger.info("fetching %s (%s) into %s", what, f"{len(files)} files, {shown_bytes(size)}", folder)
    made: dict[str, Any] = {}
    for file in files:
        target = folder / file.name
        digest = digests(target)["sha256"] if target.is_file() else transfer(source, file, target, patience)
        status = target.stat()
        made[file.name] = {"sha256": digest, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    document = {"address": what, "is_folder": is_folder, "patterns": place.patterns, "files": made}
    write_atomically(place.record(version), json.dumps(document, indent=2, sort_keys=True) + "\n")
    _logger.info("fetched %s in %.1f s", what, time.monotonic() - begun)
    _prune(place, version)
    found = _whole(place, version)
    assert found is not None, "it was written just now"
    return found


def _check_room(place: _Place, files: Sequence[RemoteFile], folder: Path) -> None:
    """Refuse what the disk has no space for, before anything is fetched."""
    there = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    done = sum(max(there.get(f"{Path(file.name).name}{end}", 0) for end in ("", PART)) for file in files)
    needed, free = sum(file.size or 0 for file in files) - done, shutil.disk_usage(folder).free
    if needed > free:
        raise full(shown(place.address), needed=shown_bytes(needed), free=shown_bytes(free), place=folder)


def _tell_change(place: _Place, version: str) -> None:
    if any(record.stem != version for record in place.root.glob("*.json")):
        _logger.info("%s has changed since it was fetched last", shown(place.address))


def _whole(place: _Place, version: str) -> Copy | None:
    """Return a copy whose files are all there, as they were written."""
    try:
        document = json.loads(place.record(version).read_text(encoding="utf-8"))
        files, is_folder = document["files"], document["is_folder"]
        folder = place.folder(version, is_folder=is_folder)
        if not place.is_covered(document):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for name, told in files.items():
        try:
            status = (folder / name).stat()
        except OSError:
            return None
        if (status.st_size, status.st_mtime_ns) != (told["size"], told["mtime_ns"]):
            return None
    lines = "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    first = next(iter(files))
    if is_folder:
        return Copy(document["address"], folder, hashlib.sha256(lines.encode()).hexdigest())
    return Copy(document["address"], folder / first, files[first]["sha256"])


@contextmanager
def _alone(place: _Place, patience: Patience) -> Iterator[None]:
    """Let one process at a time download an address.

    Raises:
        AddressError: the one that does makes no progress (E3620).
    """
    lock, what = place.root / "lock", shown(place.address)
    limit_s = 2 * patience.timeout_s * patience.attempts
    size, since, has_told = -1, time.monotonic(), False
    while True:
        with suppress(BlockingIOError):
            held = FileLock(lock)
            break
        if not has_told:
            _logger.info("%s is being fetched by another process (%s)", what, holder_of(lock))
            has_told = True
        now = sum(_size(path) for path in place.root.rglob("*"))
        if now != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > limit_s:
            raise AddressError(
                f"{what} is being fetched by {holder_of(lock)}, which has made no progress for {limit_s:g} s; end it",
                code="E3620",
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        held.release()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _use(lock: Path) -> None:
    """Keep a version from being removed until this process ends."""
    with _using:
        while lock not in _in_use:
            with suppress(BlockingIOError):  # it is being removed, which takes a moment
                _in_use[lock] = FileLock(lock, is_shared=True)


def _prune(place: _Place, version: str) -> None:
    """Remove versions that nobody uses, but the newest."""
    for lock in place.root.glob("*.lock"):
        if lock.stem == version or lock in _in_use:
            continue
        with suppress(BlockingIOError):
            held, gone = FileLock(lock), place.root / f".{lock.stem}.old"
            try:
                place.record(lock.stem).unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    os.replace(place.root / lock.stem, gone)
            finally:
                held.release()
            shutil.rmtree(gone, ignore_errors=True)
