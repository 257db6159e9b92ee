"""What kernels are made of: addresses, data types, e^x.

A kernel takes addresses of tensors as integers, since making arrays of them would take longer than many a kernel. A
tensor's data type is told by a number of the type that its elements have in memory, `LIKE`: bfloat16 is the upper
half of a float32, which a 16-bit integer holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from numba import njit, types
from numba.extending import intrinsic, overload
from torch import Tensor

from trinity.utils.fused.kernel_cache import keep

LIKE = {torch.float32: np.float32(0), torch.bfloat16: np.uint16(0), torch.int64: np.int64(0)}


def kernel(function: Any) -> Any:
    """Compile a kernel.

    Sums may be taken in any order, which is what makes them vectors; infinity and NaN keep their meaning.
    """
    return keep(njit(fastmath={"contract", "reassoc", "arcp", "nsz"}, nogil=True, error_model="numpy")(function))


def exact_kernel(function: Any) -> Any:
    """Compile a kernel whose operations stay in their order."""
    return keep(njit(nogil=True, error_model="numpy")(function))


def like_of(*tensors: Shaped[Tensor, "..."]) -> Any:
    """Return the number that tells the data type of tensors.

    Raises:
        TypeError: they have several.
    """
    found = {tensor.dtype for tensor in tensors}
    if len(found) > 1:
        raise TypeError(f"a kernel reads tensors of one data type, got {', '.join(sorted(map(str, found)))}")
    return LIKE[found.pop()]


@intrinsic
def pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """Return the address as a pointer to numbers of the type of `like`."""
    kind = types.CPointer(like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), generate


def load(numbers: Any, place: int) -> Any:
    """Return a number as float32."""
    raise NotImplementedError("compiled only")


def store(numbers: Any, place: int, value: Any) -> None:
    """Write a float32, rounded to the nearest number of the tensor's type."""
    raise NotImplementedError("compiled only")


@overload(load, inline="always")
def _load(numbers: Any, place: Any) -> Any:
    def load_half(numbers: Any, place: Any) -> Any:
        return np.uint32(np.uint32(numbers[place]) << np.uint32(16)).view(np.float32)

    def load_whole(numbers: Any, place: Any) -> Any:
        return numbers[place]

    return load_half if numbers.dtype == types.uint16 else load_whole


@overload(store, inline="always")
def _store(numbers: Any, place: Any, value: Any) -> Any:
    def store_half(numbers: Any, place: Any, value: Any) -> Any:
        bits = np.float32(value).view(np.uint32)
        carry = np.uint32(np.uint32(0x7FFF) + np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
        numbers[place] = np.uint16(np.uint32(np.uint32(bits + carry) >> np.uint32(16)))

    def store_whole(numbers: Any, place: Any, value: Any) -> Any:
        numbers[place] = np.float32(value)

    return store_half if numbers.dtype == types.uint16 else store_whole


@njit(inline="always")
def exponential(x: Any) -> Any:
    """Return e^x in float32, off by at most 1e-7 of it; 0 below -87.

    The compiler makes vectors of it, which it does not of a library's function. Reduction and polynomial: Cephes, expf.
    """
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - whole * np.float32(0.693359375)
    r = r - whole * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * np.int32(np.int32(np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
