"""Objects that components hand to each other without sending them through a call: mappings of big tensors.

A reference is a small dictionary that any process can be given. Its `store` says who can open it: `local` (this process
alone), `file` (every process of this machine), or what a runtime has registered.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trinity.common.errors import SyncError

if TYPE_CHECKING:
    from torch import Tensor

Reference = dict[str, Any]
Tensors = Mapping[str, "Tensor"]


class ObjectStore(Protocol):
    """Holds mappings of tensors until they are dropped.

    Attributes:
        is_local: the object itself is handed over, so that whoever gets it sees later changes.
    """

    is_local: bool

    def put(self, tensors: Tensors) -> Reference:
        """Hold `tensors`; return the reference that opens them."""

    def get(self, reference: Reference) -> Tensors:
        """Return the tensors of a reference."""

    def drop(self, reference: Reference) -> None:
        """Forget an object; nothing happens where it is gone."""


class LocalObjects:
    """Objects of this process: what is put is what is got."""

    is_local = True
    _held: dict[int, Tensors] = {}  # of the process: a receiver has no other way to them than the reference
    _numbers = itertools.count(1)

    def put(self, tensors: Tensors) -> Reference:
        """Hold `tensors` themselves."""
        number = next(self._numbers)
        self._held[number] = tensors
        return {"store": "local", "pid": os.getpid(), "number": number}

    def get(self, reference: Reference) -> Tensors:
        """Return the very object that was put.

        Raises:
            SyncError: it was dropped (E5502), or is in another process (E5505).
        """
        if reference["pid"] != os.getpid():
            raise SyncError(
                f"an object of process {reference['pid']} was asked for in process {os.getpid()}: what is held in "
                "memory stays in its process; use synchronizer.sync_method: checkpoint",
                code="E5505",
            )
        if reference["number"] not in self._held:
            raise SyncError("the object that a reference names was dropped", code="E5502")
        return self._held[reference["number"]]

    def drop(self, reference: Reference) -> None:
        """Forget an object."""
        self._held.pop(reference["number"], None)


class FileObjects:
    """Objects as files that every process of the machine can read.

    Args:
        folder: where; one in memory (`/dev/shm`) saves the disk.
    """

    is_local = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, tensors: Tensors) -> Reference:
        """Write `tensors` to a file of their own."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{uuid.uuid4().hex}.safetensors"
        save_file({name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}, file)
        return {"store": "file", "file": str(file)}

    def get(self, reference: Reference) -> Tensors:
        """Return the tensors of a file.

        Raises:
            SyncError: the file is gone (E5502).
        """
        from safetensors.torch import load_file

        try:
            tensors: Tensors = load_file(reference["file"])
        except OSError as error:
            raise SyncError(f"the object {reference['file']} was dropped: {error}", code="E5502") from error
        return tensors

    def drop(self, reference: Reference) -> None:
        """Remove the file."""
        Path(reference["file"]).unlink(missing_ok=True)


_OPENERS: dict[str, Callable[[Reference], Tensors]] = {
    "local": LocalObjects().get,
    "file": FileObjects(Path()).get,
}


def register_opener(store: str, opener: Callable[[Reference], Tensors]) -> None:
    """Let this process open the references of another store."""
    _OPENERS[store] = opener


def get_object(reference: Reference) -> Tensors:
    """Return the tensors of a reference, whichever store holds them.

    Raises:
        SyncError: they are gone (E5502), or this process cannot open them (E5505).
    """
    opener = _OPENERS.get(reference["store"])
    if opener is None:
        known = ", ".join(sorted(_OPENERS))
        raise SyncError(
            f"this process cannot open objects of the store {reference['store']!r} (known here: {known})", code="E5505"
        )
    return opener(reference)
