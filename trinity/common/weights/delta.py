"""Lossless differences between two versions, tensor by tensor, as files.

    stored = zlib(planes(old) xor planes(new)),  new = planes^-1(planes(old) xor unzlib(stored))

`planes` puts the first byte of every number first, then the second byte of every number, and so on. A small training
step leaves sign, exponent and the upper mantissa bits of most numbers unchanged, so the xor of those planes is nearly
all zero and compresses well. An unchanged tensor is not stored. The file holds a checksum of every tensor of `new`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from trinity.common.errors import SyncError
from trinity.common.weights.ticket import tensor_digest

DELTA_FILE = "delta.safetensors"
LEVEL = 1  # of zlib: higher levels take several times as long and save only a few percent of the size
THREADS = 4


def is_comparable(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> bool:
    """Return whether both have equal names, shapes and data types.

    Only then can `write_delta` store one as a difference to the other.
    """
    return old.keys() == new.keys() and all(
        old[name].shape == tensor.shape and old[name].dtype == tensor.dtype for name, tensor in new.items()
    )


def write_delta(
    file: Path, old: Mapping[str, Tensor], new: Mapping[str, Tensor], *, digests: Mapping[str, str]
) -> None:
    """Write the difference from `old` to `new`; both are on the CPU.

    Args:
        file: where to write.
        old: tensors by name, comparable with `new`.
        new: tensors by name, of any shapes.
        digests: `tensor_digest` of each tensor of `new`.
    """
    from safetensors.torch import save_file

    with ThreadPoolExecutor(THREADS) as pool:
        changed = [
            name for name, same in zip(new, pool.map(torch.equal, *_bytes_of(old, new)), strict=True) if not same
        ]
        parts = dict(zip(changed, pool.map(lambda name: _encode(old[name], new[name]), changed), strict=True))
    tensors = {name: torch.frombuffer(bytearray(part), dtype=torch.uint8) for name, part in parts.items()}
    save_file(tensors, file, metadata={"digests": json.dumps(dict(digests))})


def apply_delta(file: Path, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `old` with a delta applied; the tensors of `old` do not change.

    Unchanged tensors are shared with `old`. Shapes and data types are those of `old`.

    Raises:
        SyncError: a tensor does not become what was published (E5507).
        OSError, SafetensorError: the file cannot be read.
    """
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        digests: dict[str, str] = json.loads(opened.metadata()["digests"])
        parts = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not iterable)

    def make(name: str) -> Shaped[Tensor, "..."]:
        tensor = _decode(old[name], parts[name], name) if name in parts else old[name]
        if tensor_digest(tensor) != digests[name]:
            raise SyncError(_torn(file, name), code="E5507")
        return tensor

    if missing := sorted(digests.keys() - old.keys()):
        raise SyncError(_torn(file, missing[0]), code="E5507")
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(digests, pool.map(make, digests), strict=True))


def _torn(file: Path, name: str) -> str:
    return (
        f"{file} does not turn tensor {name} into what the trainer published; the engine keeps its version. Look for a "
        "disk that loses data, or write synchronizer.checkpoint_delta: false"
    )


def _planes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor, [bytes a number, numbers]."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.reshape(-1, tensor.element_size()).T


def _encode(old: Tensor, new: Tensor) -> bytes:
    return zlib.compress(np.bitwise_xor(_planes(old), _planes(new)).tobytes(), LEVEL)


def _decode(old: Tensor, part: Tensor, name: str) -> Tensor:
    planes = _planes(old)
    try:
        changes = np.frombuffer(zlib.decompress(part.numpy().tobytes()), dtype=np.uint8).reshape(planes.shape)
    except (zlib.error, ValueError) as error:
        raise SyncError(f"the change of tensor {name} cannot be unpacked: {error}", code="E5507") from error
    merged = np.ascontiguousarray(np.bitwise_xor(planes, changes).T)
    return torch.from_numpy(merged.reshape(-1)).view(old.dtype).reshape(old.shape)


def _bytes_of(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the bytes of both, in the order of `new`.

    Compared as bytes, two NaN are equal, and -0 differs from 0.
    """

    def raw(tensor: Shaped[Tensor, "..."]) -> UInt8[Tensor, "bytes"]:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8)

    return [raw(old[name]) for name in new], [raw(tensor) for tensor in new.values()]
