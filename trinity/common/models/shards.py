"""Weights that the ranks of a trainer wrote, each its own part.

`model_world_size_W_rank_R.pt` of every rank R holds tensors by Hugging Face name: parts as DTensors on a mesh of one
dimension (FSDP) or of two, replicas and parts (HSDP), or plain tensors that all ranks have. They are joined without a
process group, one tensor at a time. Shapes: "W" ranks; a tensor has any shape.
"""

from __future__ import annotations

import json
import logging
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._weights_only_unpickler import UnpicklingError

from trinity.common.errors import CheckpointError
from trinity.common.tensor_files import read_tensors_of

FSDP_CONFIG = "fsdp_config.json"
MODEL = "model"
_FILE = re.compile(r"(?P<kind>\w+)_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt")
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_BROKEN = (OSError, RuntimeError, ValueError, EOFError, KeyError, IndexError, AttributeError, TypeError)


def shard_name(kind: str, *, world: int, rank: int) -> str:
    """Return the name of a rank's file."""
    return f"{kind}_world_size_{world}_rank_{rank}.pt"


def has_shards(folder: Path, kind: str = MODEL) -> bool:
    """Return whether a folder has a file of any rank."""
    return any(folder.glob(f"{kind}_world_size_*_rank_*.pt"))


def world_size_of(folder: Path, kind: str = MODEL) -> int:
    """Return how many ranks wrote the files in a folder.

    `fsdp_config.json` says it, or the names of the files.

    Raises:
        CheckpointError: neither says it, or files of several runs are there (E7003).
    """
    file = folder / FSDP_CONFIG
    if file.is_file():
        try:
            return int(json.loads(file.read_text(encoding="utf-8"))["world_size"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} has no world_size: {error}", code="E7003") from error
    found = [match for path in folder.glob("*.pt") if (match := _FILE.fullmatch(path.name))]
    sizes = {int(match["world"]) for match in found if match["kind"] == kind}
    if len(sizes) != 1:
        held = f"files of world sizes {sorted(sizes)}" if sizes else f"no file {kind}_world_size_W_rank_R.pt"
        raise CheckpointError(f"{folder} must hold one veRL {kind} checkpoint, found {held}", code="E7003")
    return sizes.pop()


def shard_files(folder: Path, kind: str = MODEL) -> list[Path]:
    """Return the files of all ranks, in rank order.

    Raises:
        CheckpointError: one is missing, or it is not known how many there must be (E7003).
    """
    world = world_size_of(folder, kind)
    files = [folder / shard_name(kind, world=world, rank=rank) for rank in range(world)]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise CheckpointError(
            f"{folder} has no {missing[0] if missing else kind}: {len(missing)} of the files of {world} ranks are "
            "missing; copy the folder again, with the files of all ranks",
            code="E7003",
        )
    return files


def check_intact(file: Path) -> None:
    """Compare every record of a rank's file with its checksum.

    Raises:
        CheckpointError: the file is torn, or a record is not what was written (E7052).
    """
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(f"cannot read {file}: {error}; copy it again", code="E7052") from error
    if bad is not None:
        raise CheckpointError(f"{file} is damaged: {bad} does not match its checksum; copy it again", code="E7052")


def read_rank(file: Path) -> Mapping[str, Tensor]:
    """Return the weights that a rank wrote; they stay in the file until used.

    Raises:
        CheckpointError: it cannot be read, or holds anything but tensors (E7003).
    """
    state = read_state(file)
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise CheckpointError(
            f"{file} must hold a mapping of names to tensors, got {type(state).__name__}", code="E7003"
        )
    return state


def read_state(file: Path, *, may_have_arrays: bool = False) -> Any:
    """Return what a rank wrote: tensors, which stay in the file, and values.

    Args:
        file: of a rank.
        may_have_arrays: read arrays of numpy, too, and nothing from the file later.

    Raises:
        CheckpointError: it cannot be read, or holds anything but tensors and plain values (E7003).
    """
    try:
        with _without_meshes_warning():
            return read_tensors_of(file, is_mapped=not may_have_arrays, may_have_arrays=may_have_arrays)
    except UnpicklingError as error:
        named = _GLOBAL.search(str(error))
        what = f", {named[1]}" if named else ""
        raise CheckpointError(
            f"{file} holds objects other than tensors{what}, which could run code when read; of the state of a model "
            "only tensors and DTensors are read",
            code="E7003",
        ) from error
    except _BROKEN as error:
        raise CheckpointError(f"cannot read {file}: {error}", code="E7003") from error


@contextmanager
def _without_meshes_warning() -> Iterator[None]:
    """Suppress PyTorch's warning that a mesh has no process group here."""
    told = logging.getLogger("torch.distributed.device_mesh")
    level = told.level
    told.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told.setLevel(level)


class RankShards:
    """The weights of a model in the files of its ranks.

    Args:
        folder: with `model_world_size_W_rank_R.pt` of all ranks.

    Raises:
        CheckpointError: a file is missing, or cannot be read (E7003).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = shard_files(folder)
        first = read_rank(self.files[0])
        self.like = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in first.items()
        }

    @property
    def world_size(self) -> int:
        """How many ranks wrote the files."""
        return len(self.files)

    @contextmanager
    def opened(self) -> Iterator[JoinedShards]:
        """Map the files into memory; give them free afterwards.

        Raises:
            CheckpointError: a file cannot be read, or has other names than the first (E7003).
        """
        parts: list[Mapping[str, Tensor]] = []
        for rank, file in enumerate(self.files):
            parts.append(read_rank(file))
            if parts[rank].keys() != self.like.keys():
                raise CheckpointError(f"{self.folder}: rank {rank} holds other weights than rank 0", code="E7003")
        yield JoinedShards(self.folder, parts)
        parts.clear()


class JoinedShards(Mapping[str, Tensor]):
    """Whole tensors by name, each joined when it is read.

    Args:
        folder: that the parts are from, for messages.
        parts: what each rank wrote, in rank order.
    """

    def __init__(self, folder: Path, parts: Sequence[Mapping[str, Tensor]]) -> None:
        self._folder = folder
        self._parts = parts

    def __getitem__(self, name: str) -> Tensor:
        parts = [part[name] for part in self._parts]
        try:
            full = joined(parts)
        except _BROKEN as error:
            raise CheckpointError(f"{self._folder}: the parts of {name} do not fit: {error}", code="E7003") from error
        if not _is_distributed(parts[0]) and any(not _same(full, part) for part in parts[1:]):
            raise CheckpointError(
                f"{self._folder}: {name} is a plain tensor that differs between ranks, so that how its parts join is "
                "not known; save with FSDP2, or with a device mesh",
                code="E7003",
            )
        return full

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts[0])

    def __len__(self) -> int:
        return len(self._parts[0])


def joined(parts: Sequence[Any]) -> Tensor:
    """Join the parts of all ranks, in rank order, along their sharded dim.

    The whole tensor may have any shape. Of a mesh with replicas, the first is read. Plain tensors are whole already.

    Raises:
        ValueError: they are not parts of one tensor along one dimension.
    """
    first = parts[0]
    if not _is_distributed(first):
        return first.detach()
    mesh = first.device_mesh.mesh
    spread = [(axis, place.dim) for axis, place in enumerate(first.placements) if place.is_shard()]
    if len(spread) > 1 or any(place.is_partial() for place in first.placements):
        raise ValueError(f"a tensor is spread as {first.placements}, which is not read here")
    axis, dim = spread[0] if spread else (0, 0)
    ranks = mesh.movedim(axis, -1).reshape(-1, mesh.shape[axis])[0].tolist() if spread else [int(mesh.flatten()[0])]
    wrong = [rank for rank in ranks if not 0 <= rank < len(parts)]
    if wrong:
        raise ValueError(f"they are on rank {wrong[0]}, and there are files of {len(parts)} ranks")
    pieces = [_part(parts[rank]) for rank in ranks]
    full: Tensor = torch.cat(pieces, dim) if spread else pieces[0]
    if full.shape != first.shape:
        raise ValueError(f"the parts of a tensor of shape {list(first.shape)} make one of {list(full.shape)}")
    return full.detach()


def _is_distributed(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh")


def _part(tensor: Any) -> Tensor:
    """Return a rank's own part, whatever process groups there are."""
    part: Tensor = tensor._local_tensor if _is_distributed(tensor) else tensor
    return part


def _same(one: Tensor, other: Any) -> bool:
    """Return whether two tensors are bitwise identical."""
    if _is_distributed(other) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = (each.detach().contiguous().view(-1).view(torch.uint8) for each in (one, other))
    return bool(torch.equal(a, b))
