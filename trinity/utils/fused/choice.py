"""Whether compiled kernels are used in this process."""

from __future__ import annotations

import functools
import importlib.util

import torch

LEAST_ELEMENTS = 1_000_000
"""Of a smaller model a run is too short to earn the half second that Numba takes to load."""

HEAD_SIZES = 32
"""Decoding steps serve head sizes that are multiples of this; see `keys.PAIR`."""


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def uses_kernels(num_elements: int, *, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a model or a tensor is computed by compiled kernels.

    They run on one thread and serve float32 and bfloat16. Whoever asks knows that the run is not deterministic.

    Args:
        num_elements: parameters of the model, or elements of the tensor.
        device: where it is.
        dtype: data type of its products.
    """
    return (
        num_elements >= LEAST_ELEMENTS
        and device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and torch.get_num_threads() == 1
        and _is_installed()
    )
