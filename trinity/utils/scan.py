"""Cumulative sums that are reproducible where PyTorch's are not."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def cumulative_sum(x: Float[Tensor, "... n"], dtype: torch.dtype | None = None) -> Float[Tensor, "... n"]:
    """Return the cumulative sum over the last dimension, in `dtype` if given.

    PyTorch's own on CUDA adds floats in an order that changes from call to call, and raises an error under
    `torch.use_deterministic_algorithms`; there it is computed by doubling (Hillis, Steele 1986, "Data parallel
    algorithms"), element by element, so that no row depends on another.
    """
    if x.device.type == "cpu" or not torch.are_deterministic_algorithms_enabled():
        return x.cumsum(-1, dtype=dtype)
    return by_doubling(x.to(dtype or x.dtype))


def by_doubling(x: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Return the cumulative sum over the last dimension.

    It takes about log2(n) additions of whole tensors.
    """
    shift = 1
    while shift < x.shape[-1]:
        x = torch.cat((x[..., :shift], x[..., shift:] + x[..., :-shift]), -1)
        shift *= 2
    return x
