"""Tensors of the strict device: their memory, and the CPU tensors over the same memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "strict"
DEVICE = torch.device("privateuseone", 0)  # named `strict` once the device is installed
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_SET = torch.ops.aten.set_.source_Storage_storage_offset
_NOT_AN_ADDRESS = 1 << 60  # no processor maps it: code that reads the memory on the CPU ends as on CUDA


def is_strict(value: Any) -> bool:
    """Return whether `value` is a tensor of the strict device."""
    return isinstance(value, Tensor) and value.device.type == DEVICE.type


def to_strict(host: Tensor) -> Tensor:
    """Return the tensor of the strict device over the memory of `host`."""
    storage = _storage(host)
    return _SET.redispatch(
        _CPU,
        torch._C._acc.create_empty_tensor([0], host.dtype),
        *(storage, host.storage_offset(), host.size(), host.stride()),
    )


def _storage(host: Tensor) -> torch.UntypedStorage:
    own = host.untyped_storage()
    address = own.data_ptr()
    storage = torch._C._construct_storage_from_data_pointer(
        address | _NOT_AN_ADDRESS if address else 0, DEVICE, own.nbytes()
    )
    storage._host = own  # the memory lives as long as the storage
    return storage


def host_storage(tensor: Tensor) -> torch.UntypedStorage:
    """Return the CPU storage behind a tensor of the strict device."""
    return tensor.untyped_storage()._host


def to_host(tensor: Tensor) -> Tensor:
    """Return the CPU tensor over the memory of `tensor`."""
    return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        host_storage(tensor), tensor.storage_offset(), tensor.size(), tensor.stride()
    )


def place(tensor: Tensor, host: Tensor) -> Tensor:
    """Let `tensor` have the memory, shape and strides of `host`; return it."""
    held, wanted = tensor.untyped_storage(), host.untyped_storage()
    is_same = held._host.data_ptr() == wanted.data_ptr() and held.nbytes() == wanted.nbytes()
    storage = tensor.untyped_storage() if is_same else _storage(host)
    return _SET.redispatch(_CPU, tensor, storage, host.storage_offset(), host.size(), host.stride())


def view(tensor: Tensor, host: Tensor) -> Tensor:
    """Return a tensor with the shape and strides of `host` in the storage of `tensor`."""
    made = torch._C._acc.create_empty_tensor([0], host.dtype)
    return _SET.redispatch(_CPU, made, tensor.untyped_storage(), host.storage_offset(), host.size(), host.stride())
