"""Matrix products by the faster of PyTorch's two CPU libraries.

PyTorch takes MKL for float32, which uses half the vector width on processors that are not Intel's; there oneDNN takes
less than half the time with AVX-512. Which one is used depends on the processor alone, so that two runs on one machine
compute the same bits. All else (bfloat16, CUDA) is PyTorch's own choice.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

# From so many rows on the rounding of a row stays the same: measured for 16 to 1536 inputs, 17 to 1536 outputs.
LEAST_ROWS_ONEDNN, LEAST_ROWS_MKL = 2, 16


@functools.cache
def prefers_onednn() -> bool:
    """Return whether float32 products on this machine's CPU go through oneDNN."""
    if not (torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_supported()):
        return False
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            is_intel = any("GenuineIntel" in line for line in file)
    except OSError:
        return False
    return not is_intel and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a [N, I] times b [I, O]; for code that computes its own gradient."""
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "") if _is_ours(a) else torch.mm(a, b)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b without a gradient.

    x is [..., I], the weight W is [O, I], the bias b is [O].

    In float32 on a CPU a row's result does not depend on how many rows there are: few of them, for which the
    libraries have another algorithm with another rounding, are computed as more.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu":
        return _linear(x, weight, bias)
    num_rows, least = x.shape[:-1].numel(), LEAST_ROWS_ONEDNN if prefers_onednn() else LEAST_ROWS_MKL
    if not 0 < num_rows < least:
        return _linear(x, weight, bias)
    filled = x.new_zeros(least, x.shape[-1])
    filled[:num_rows] = x.reshape(num_rows, -1)
    return _linear(filled, weight, bias)[:num_rows].view(*x.shape[:-1], -1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if _is_ours(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.nn.functional.linear(x, weight, bias)


def _is_ours(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0 and prefers_onednn()
