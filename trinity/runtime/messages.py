"""Bytes of the messages between a process of ours and its children.

The standard library's serializer of `multiprocessing`, without the reducers that torch adds to it: those share the
memory of a tensor with the other process and hold file descriptors open; here a tensor is a copy. What is written by
it is never stored, and comes from a process that this one started, or that started this one.
"""

from __future__ import annotations

import io
import sys
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class _Writer(ForkingPickler):
    _extra_reducers: dict[type, Any] = {}


def to_bytes(message: Any) -> bytes:
    """Return `message` as bytes for `from_bytes` in another process."""
    buffer = io.BytesIO()
    writer = _Writer(buffer, 5)
    if "torch" in sys.modules:
        import torch

        writer.dispatch_table[torch.Tensor] = reduced
    writer.dump(message)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:
    """Return the message that `to_bytes` made."""
    return ForkingPickler.loads(data)


def reduced(tensor: Tensor) -> tuple[Any, ...]:
    """Return function and arguments that copy a tensor in another process.

    It may have any shape. In main memory it goes as its bytes: torch's own way writes a file for each, at ten times the
    cost.
    """
    if tensor.device.type != "cpu" or tensor.requires_grad or tensor.layout != _strided():
        return tensor.__reduce_ex__(5)
    import torch

    plain = tensor.detach().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return _tensor, (data, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _strided() -> Any:
    import torch

    return torch.strided


def _tensor(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    import torch

    kind = getattr(torch, dtype)
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
