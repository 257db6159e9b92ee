"""A finished folder to its address: continued, and marked whole last."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger
from trinity.utils.remote.addresses import joined, shown
from trinity.utils.remote.errors import Interrupted
from trinity.utils.remote.patience import Patience, answered
from trinity.utils.remote.sources import file_system, path_of

UNFINISHED = "UNFINISHED.json"
OWNER = "OWNER"
_SLOWEST_BYTES_PER_S = 1 << 20
_logger = get_logger("remote")


def upload_folder(folder: Path, address: str, *, seal: str, patience: Patience) -> int:
    """Copy a folder to an address; return the bytes that were sent.

    The seal is a file that says what the folder consists of, so that two folders with the same seal are the same. It
    is sent last: a copy with a seal is whole. Until then the copy holds it as `UNFINISHED.json`, which says of which
    folder the files are that are there already.

    Args:
        folder: it does not change.
        address: of the copy; what is there and has another seal is replaced.
        seal: the name of that file.
        patience: bounds every wait; a file has a second more for each MiB.

    Raises:
        AddressError: it cannot be copied.
        OSError: the folder is gone.
    """
    there = _folder(address, patience)
    content = (folder / seal).read_bytes()
    if there.content(seal) == content:
        return 0
    begun = there.content(UNFINISHED) == content
    if not begun:
        there.remove()
        there.write(UNFINISHED, content)
    sizes = there.sizes() if begun else {}
    sent = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, size = file.relative_to(folder).as_posix(), file.stat().st_size
        if name == seal or sizes.get(name) == size:
            continue
        there.send(file, name)
        failpoint("remote.after_upload")
        sent += size
    there.write(seal, content)
    there.drop(UNFINISHED)
    return sent + len(content)


def claimed(address: str, owner: str, *, patience: Patience) -> str:
    """Return who owns an address: `owner`, unless somebody came before.

    Raises:
        AddressError: the store does not say, or cannot be written.
    """
    there = _folder(address, patience)
    found = there.content(OWNER)
    if found is None:
        there.write(OWNER, owner.encode())
        return owner
    return found.decode("utf-8", "replace")


def write_text(address: str, text: str, *, patience: Patience) -> None:
    """Replace a small file.

    Raises:
        AddressError: it cannot be written.
    """
    parent, _, name = address.rpartition("/")
    _folder(parent, patience).write(name, text.encode())


def _folder(address: str, patience: Patience) -> _Folder:
    system = patience.call(shown(address), lambda: file_system(address))
    return _Folder(system, path_of(address, system), shown(address), patience)


class _Folder:
    """A folder of a store, every call to which is bounded."""

    def __init__(self, system: Any, path: str, what: str, patience: Patience) -> None:
        self.system, self.path, self.what, self.patience = system, path.rstrip("/"), what, patience

    def content(self, name: str) -> bytes | None:
        """Return a small file; None: it is not there."""

        def read() -> bytes | None:
            try:
                return bytes(self.system.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

        return self.patience.call(joined(self.what, name), read)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the files by their names."""

        def read() -> Mapping[str, Any]:
            self.system.invalidate_cache()
            found: Mapping[str, Any] = self.system.find(self.path, detail=True)
            return found

        found = self.patience.call(self.what, read)
        root = self.path.lstrip("/") + "/"
        return {str(each["name"]).lstrip("/").removeprefix(root): int(each["size"] or 0) for each in found.values()}

    def remove(self) -> None:
        """Remove the folder, if it is there."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.system.rm(self.path, recursive=True)

        self.patience.call(self.what, remove)

    def drop(self, name: str) -> None:
        """Remove a file."""
        self.patience.call(self.what, lambda: self.system.rm_file(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""

        def write() -> None:
            parent = self.path
            self._make(parent)
            self.system.pipe_file(self._path(name), content)

        self.patience.call(joined(self.what, name), write)

    def send(self, file: Path, name: str) -> None:
        """Copy a file, and compare its size."""
        what, place = joined(self.what, name), self._path(name)
        limit_s = self.patience.timeout_s + file.stat().st_size / _SLOWEST_BYTES_PER_S

        def send() -> None:
            self._make(place.rpartition("/")[0])
            self.system.put_file(os.fspath(file), place)
            self.system.invalidate_cache()
            size, has = file.stat().st_size, int(self.system.info(place)["size"])
            if has != size:
                raise Interrupted(f"{has} of {size} bytes are there")

        for number in range(1, self.patience.attempts + 1):
            try:
                return answered(send, limit_s)
            except Exception as error:  # noqa: BLE001 - the clients of stores have no common class of errors
                self.patience.failed(what, error, number)

    def _make(self, folder: str) -> None:
        """Make a folder where the store has such; a store of objects has none."""
        protocol = self.system.protocol
        if {"hdfs", "memory"} & ({protocol} if isinstance(protocol, str) else set(protocol)):
            self.system.makedirs(folder, exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}"
