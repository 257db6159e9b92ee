"""Whether compiled kernels are used in this process."""

from __future__ import annotations

import functools
import importlib.util
import platform

import torch

from trinity.utils.log import get_logger

LEAST_ELEMENTS = 1_000_000
"""Of a smaller model a run is too short to earn the half second that Numba takes to load."""

HEAD_SIZES = 32
"""Decoding steps serve head sizes that are multiples of this; see `keys.PAIR`."""

_logger = get_logger("utils.fused")


@functools.cache
def _can_compile() -> bool:
    if importlib.util.find_spec("numba") is None:
        return False
    # Without these instructions each product and sum of a vector would be a call of a function.
    if platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx2_supported():
        return False
    try:
        importlib.import_module("trinity.utils.fused.machine")
    except Exception as error:  # noqa: BLE001 - whatever keeps Numba from working with what else is installed
        _logger.warning(
            "Numba is installed and cannot be used, so steps on this CPU take longer: %s: %s; install versions of "
            "numba and numpy that fit each other, or remove numba",
            type(error).__name__,
            error,
        )
        return False
    return True


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
        and _can_compile()
    )
