"""Objects that components hand to each other without sending them through a call: mappings of big tensors.

A reference is a small dictionary that any process can be given. Its `store` says who can open it: `local` (this process
alone), `memory` (every process of this machine), or what a runtime has registered.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trinity.common.errors import SyncError

if TYPE_CHECKING:
    from torch import Tensor

Reference = dict[str, Any]
Entries = dict[str, tuple[str, tuple[int, ...], int, int]]
"""By name: dtype, shape, offset and size in bytes; tied tensors have the same entry."""
Tensors = Mapping[str, "Tensor"]


ALIGNMENT = 64


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


def layout(tensors: Tensors) -> tuple[Entries, dict[int, Tensor], int]:
    """Return the place of every tensor, what to write at which offset, and the size in bytes."""
    entries: Entries = {}
    seen: dict[tuple[Any, ...], tuple[str, tuple[int, ...], int, int]] = {}
    parts: dict[int, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        if key not in seen or not tensor.numel():
            length = tensor.numel() * tensor.element_size()
            seen[key] = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), size, length
            if length:
                parts[size] = tensor
            size += -(-length // ALIGNMENT) * ALIGNMENT
        entries[name] = seen[key]
    return entries, parts, size


def as_bytes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor as an array of uint8; a copy only where it is not contiguous on the CPU."""
    import torch

    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()


def views(entries: Mapping[str, Sequence[Any]], parts: Mapping[int, Any]) -> dict[str, Tensor]:
    """Return the tensors whose bytes are in the buffers `parts`, by offset, without a copy; tied ones are one."""
    import torch

    made: dict[tuple[str, int, tuple[int, ...]], Tensor] = {}
    named: dict[str, Tensor] = {}
    for name, (dtype, shape, offset, length) in entries.items():
        key = (dtype, offset, tuple(shape))
        kind = getattr(torch, dtype)
        if not length:
            named[name] = torch.empty(tuple(shape), dtype=kind)
            continue
        if key not in made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a store's memory is read-only, and torch says so
                made[key] = torch.frombuffer(parts[offset], dtype=kind).reshape(tuple(shape))
        named[name] = made[key]
    return named


class MemoryObjects:
    """Objects in memory files, which every process of the machine can read and which end with the one that put them."""

    is_local = False
    _held: dict[str, int] = {}  # descriptors of this process by path; closing one frees the memory

    def put(self, tensors: Tensors) -> Reference:
        """Hold a copy of `tensors` until it is dropped in this process, or this process ends."""
        entries, parts, size = layout(tensors)
        descriptor, path = _memory_file()
        try:
            os.truncate(descriptor, size)
            for offset, tensor in parts.items():
                _write(descriptor, as_bytes(tensor), offset)
        except BaseException:
            os.close(descriptor)
            raise
        self._held[path] = descriptor
        inode = os.fstat(descriptor).st_ino
        return {"store": "memory", "path": path, "inode": inode, "size": size, "entries": entries}

    def get(self, reference: Reference) -> Tensors:
        """Return the tensors, to be read only: pages come when they are touched.

        Raises:
            SyncError: it was dropped, or the process that put it has ended (E5502).
        """
        path, size = reference["path"], reference["size"]
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_ino != reference["inode"]:
                    raise OSError("another file has taken its place")
                view = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b"")
        except (OSError, ValueError) as error:
            raise SyncError(
                f"the object {path} was dropped, or the process that put it has ended: {error}", code="E5502"
            ) from error
        ends = {offset: offset + length for _, _, offset, length in reference["entries"].values()}
        return views(reference["entries"], {start: view[start:end] for start, end in ends.items()})

    def drop(self, reference: Reference) -> None:
        """Give the memory back, where this process put it; what was got stays readable."""
        descriptor = self._held.pop(reference["path"], None)
        if descriptor is not None:
            os.close(descriptor)
            if not reference["path"].startswith("/proc/"):
                Path(reference["path"]).unlink(missing_ok=True)


def _memory_file() -> tuple[int, str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("trinity")
        return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"
    return tempfile.mkstemp(prefix="trinity-")


def _write(descriptor: int, data: Any, offset: int) -> None:
    view = memoryview(data)
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


_OPENERS: dict[str, Callable[[Reference], Tensors]] = {
    "local": LocalObjects().get,
    "memory": MemoryObjects().get,
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
