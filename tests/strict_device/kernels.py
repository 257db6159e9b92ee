"""Operations of the strict device: checked, computed by the CPU's kernels over the same memory, given back."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.strict_device import memory, refusals

Op = torch._ops.OpOverload

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# Kernels that touch sizes and strides alone: those of the CPU work on the device's tensors as they are.
_OF_SHAPE = (
    aten.as_strided.default,
    aten.view.default,
    aten._reshape_alias.default,
    aten.unfold.default,
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor,
)
# PyTorch would compose these from others; the CPU's own kernels give the CPU's bits.
_AS_THE_CPU = (aten.native_layer_norm.default, aten.native_group_norm.default, aten.silu_backward.default)
# After these the host knows sizes or values that only the device knew.
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive", "equal"}


class Waits:
    """Counts how often the host waited for the device."""

    count = 0


class Noise:
    """The device's random stream: operations draw from it and leave the CPU's alone."""

    generator = torch.Generator()
    _lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._kept = torch.default_generator.get_state()
        torch.default_generator.set_state(self.generator.get_state())

    def __exit__(self, *_: object) -> None:
        self.generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(self._kept)
        self._lock.release()


def compute(op: Op, *args: Any, **kwargs: Any) -> Any:
    """Return the result of `op`, which has no kernel of its own here.

    Raises:
        RuntimeError: CUDA refuses these arguments, see `refusals.check`.
    """
    refusals.check(op, args, kwargs)
    name = op._schema.name.partition("::")[2]
    has_mask = any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in _flat(kwargs, *args))
    if name in _WAITING or (name in refusals.CPU_INDICES and has_mask):
        Waits.count += 1
    given: dict[int, tuple[Tensor, Tensor]] = {}  # by the identity of the CPU tensor, which this keeps alive
    seen: dict[int, Tensor] = {}

    def down(value: Any) -> Any:
        if memory.is_strict(value):
            if id(value) not in seen:
                seen[id(value)] = memory.to_host(value)
                given[id(seen[id(value)])] = seen[id(value)], value
            return seen[id(value)]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == memory.NAME else value

    def up(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in given:
            return given[id(value)][1]
        address = value.untyped_storage().data_ptr()
        for host, original in given.values():
            if address and host.untyped_storage().data_ptr() == address:
                return memory.view(original, value)
        return memory.to_strict(value)

    host_args = [_mapped(down, value) for value in args]
    host_kwargs = {key: _mapped(down, value) for key, value in kwargs.items()}
    call = op.overloadpacket if _has_number_for_tensor(op, args) else op
    if torch.Tag.nondeterministic_seeded in op.tags:
        with Noise():
            result = call(*host_args, **host_kwargs)
    else:
        result = call(*host_args, **host_kwargs)
    for host, original in given.values():
        if host.shape != original.shape or host.stride() != original.stride():
            memory.place(original, host)  # an output that was resized
    return _mapped(up, result)


def _mapped(call: Callable[[Any], Any], value: Any) -> Any:
    """Return `call` of a value, or of each of a list of values; operations know no deeper nesting."""
    return type(value)(map(call, value)) if type(value) in (list, tuple) else call(value)


def _has_number_for_tensor(op: Op, args: tuple[Any, ...]) -> bool:
    """Return whether a number stands where `op` wants a tensor: PyTorch hands on `x & 3` so."""
    pairs = zip(op._schema.arguments, args, strict=False)
    return any(isinstance(value, (int, float, complex)) and str(each.type) == "Tensor" for each, value in pairs)


def _flat(kwargs: dict[str, Any], *args: Any) -> list[Any]:
    found: list[Any] = []
    for value in (*args, *kwargs.values()):
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def _refuse_pinned(pin_memory: bool | None) -> None:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    _refuse_pinned(pin_memory)
    kept = torch.contiguous_format if memory_format is None else memory_format
    return memory.to_strict(torch.empty(size, dtype=dtype, memory_format=kept, device="cpu"))


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    _refuse_pinned(pin_memory)
    return memory.to_strict(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    to_host = memory.is_strict(source) and not memory.is_strict(target)
    from_pageable = memory.is_strict(target) and not memory.is_strict(source) and not source.is_pinned()
    if (to_host and not non_blocking) or (from_pageable and source.dim() and not non_blocking):
        Waits.count += 1
    host_target = memory.to_host(target) if memory.is_strict(target) else target
    host_target.copy_(memory.to_host(source) if memory.is_strict(source) else source)
    return target


def _resize(tensor: Tensor, size: Any, memory_format: Any = None) -> Tensor:
    host = memory.to_host(tensor)
    needed = torch.empty(size, dtype=tensor.dtype, device="meta").untyped_storage().nbytes()
    if needed > host.untyped_storage().nbytes():
        grown = torch.empty(size, dtype=tensor.dtype, device="cpu")
        grown.view(-1)[: host.numel()] = host.reshape(-1)
        return memory.place(tensor, grown)
    return memory.place(tensor, host.resize_(size))


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    pinned = tensor.clone()
    pinned.untyped_storage()._is_pinned = True
    return pinned


def _is_pinned(tensor: Tensor, device: Any = None) -> bool:
    return getattr(tensor.untyped_storage(), "_is_pinned", False)


def register() -> list[torch.library.Library]:
    """Give PyTorch the kernels; they last as long as what is returned."""
    own = torch.library.Library("aten", "IMPL")
    for op in _OF_SHAPE:
        own.impl(op.name().partition("::")[2], _on_shape(op), "PrivateUse1")
    kernels: dict[str, Callable[..., Any]] = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_copy_from": _copy_from,
        "resize_": _resize,
    }
    for name, kernel in kernels.items():
        own.impl(name, kernel, "PrivateUse1")
    for op in _AS_THE_CPU:
        own.impl(op.name().partition("::")[2], functools.partial(compute, op), "PrivateUse1")
    own.impl("_pin_memory", _pin_memory, "CPU")
    own.impl("is_pinned", _is_pinned, "CPU")
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(compute, "PrivateUse1")
    return [own, rest]


def _on_shape(op: Op) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: op.redispatch(_CPU, *args, **kwargs)
