"""Tensors passed between components.

Within this process they are shared; between processes they go through memory files.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.errors import SyncError

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64

_open_files: dict[str, int] = {}
"""Descriptors of the memory files that this process holds, by their path; closing one frees the memory."""


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: dtype, shape, offset and size in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def layout(tensors: Mapping[str, Tensor]) -> tuple[dict[str, TensorEntry], dict[int, Tensor], int]:
    """Return the layout of the tensors and the size in bytes.

    The layout has the place of every tensor and what to write at which offset. Tied tensors share one place.
    """
    entries: dict[str, TensorEntry] = {}
    seen: dict[tuple[Any, ...], TensorEntry] = {}
    parts: dict[int, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        if key not in seen or not tensor.numel():
            length = tensor.numel() * tensor.element_size()
            seen[key] = TensorEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), size, length)
            parts[size] = tensor
            size += -(-length // ALIGNMENT) * ALIGNMENT
        entries[name] = seen[key]
    return entries, {offset: tensor for offset, tensor in parts.items() if tensor.numel()}, size


def as_bytes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor of any shape as an array of uint8.

    The array is a copy only if the tensor is not contiguous on the CPU.
    """
    import torch

    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()


def views(entries: Mapping[str, TensorEntry], parts: Mapping[int, Any]) -> dict[str, Tensor]:
    """Return the tensors in the buffers `parts`, by offset, without a copy."""
    import torch

    made: dict[TensorEntry, Tensor] = {}
    for entry in entries.values():
        if entry in made:
            continue
        dtype = getattr(torch, entry.dtype)
        if 0 in entry.shape:
            made[entry] = torch.empty(entry.shape, dtype=dtype)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a store's memory is read-only, and torch says so
            made[entry] = torch.frombuffer(parts[entry.offset], dtype=dtype).reshape(entry.shape)
    return {name: made[entry] for name, entry in entries.items()}


@dataclass(frozen=True)
class MemoryRef:
    """Tensors in a memory file of the process that put them; they end with it.

    Attributes:
        path: of the file, as other processes of this machine open it.
        entries: where each tensor lies.
        size: of the file in bytes.
        inode: of the file; another file of the same path is another object.
    """

    path: str
    entries: Mapping[str, TensorEntry]
    size: int
    inode: int = 0

    def load(self) -> Mapping[str, Tensor]:
        """Return the tensors; pages are read on access and never written back."""
        if not self.size:
            return views(self.entries, {})
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_ino != self.inode:
                    raise OSError("another file has taken its place")
                buffer = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise SyncError(
                f"the tensors in {self.path} are gone ({error}): the process that put them has dropped them or ended",
                code="E5704",
            ) from error
        view = memoryview(buffer)
        ends = {entry.offset: entry.offset + entry.size for entry in self.entries.values()}
        return views(self.entries, {start: view[start:end] for start, end in ends.items()})

    def drop(self) -> None:
        """Give the memory back; what was loaded stays readable."""
        descriptor = _open_files.pop(self.path, None)
        if descriptor is not None:
            os.close(descriptor)
            if not self.path.startswith("/proc/"):
                Path(self.path).unlink(missing_ok=True)


class MemoryObjects:
    """Tensors in memory files, which end with the process that put them.

    This holds for every way in which the process may end.
    """

    is_local = False

    def put(self, tensors: Mapping[str, Tensor]) -> MemoryRef:
        """Keep a copy of `tensors` until the reference is dropped in this process."""
        entries, parts, size = layout(tensors)
        if not size:
            return MemoryRef("", entries, 0)
        descriptor, path = _memory_file()
        try:
            os.truncate(descriptor, size)
            for offset, tensor in parts.items():
                _write(descriptor, as_bytes(tensor), offset)
        except BaseException:
            os.close(descriptor)
            raise
        _open_files[path] = descriptor
        return MemoryRef(path, entries, size, os.fstat(descriptor).st_ino)

    def get(self, ref: Any) -> Mapping[str, Tensor]:
        """Return the tensors of `ref`."""
        tensors: Mapping[str, Tensor] = ref.load()
        return tensors


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


def dropped() -> SyncError:
    """Return the error of tensors that were dropped (E5704)."""
    return SyncError("the tensors are gone: they have been dropped", code="E5704")


class LocalRef:
    """Tensors of this process, unchanged.

    Sent to another process, the reference becomes one to a memory file.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors: Mapping[str, Tensor] | None = tensors
        self._elsewhere: MemoryRef | None = None

    def load(self) -> Mapping[str, Tensor]:
        """Return the tensors."""
        if self._tensors is None:
            raise dropped()
        return self._tensors

    def drop(self) -> None:
        """Forget the tensors."""
        self._tensors = None
        if self._elsewhere is not None:
            self._elsewhere.drop()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._elsewhere is None:
            self._elsewhere = MemoryObjects().put(self.load())
        ref = self._elsewhere
        return MemoryRef, (ref.path, ref.entries, ref.size, ref.inode)


class LocalObjects:
    """Tensors handed over in this process: nothing is copied."""

    is_local = True

    def put(self, tensors: Mapping[str, Tensor]) -> LocalRef:
        """Keep `tensors` themselves until the reference is dropped."""
        return LocalRef(tensors)

    def get(self, ref: Any) -> Mapping[str, Tensor]:
        """Return the tensors of `ref`."""
        tensors: Mapping[str, Tensor] = ref.load()
        return tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryObjects, ()  # in another process, what it puts must be readable from here
