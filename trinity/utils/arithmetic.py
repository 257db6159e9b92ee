"""Arithmetic of this process: MKL's code path and a fingerprint.

The fingerprint is that of known results.

Settings are read once, by whoever computes first, and may be changed through PyTorch later. So neither is taken from
the environment: the library is asked, and known results are computed.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from trinity.utils.products import linear, matmul

# Branches of MKL's conditional numerical reproducibility by number, from 1 on, as mkl_cbwr_get returns them.
_VECTORS = ("SSE2", "SSE3", "SSSE3", "SSE4_1", "SSE4_2", "AVX", "AVX2")
_BRANCHES = ("OFF", "AUTO", "COMPATIBLE", *_VECTORS, "AVX512_MIC", "AVX512", "AVX512_MIC_E1", "AVX512_E1")
_ALL, _STRICT = ctypes.c_int(-1), 0x10000
_GETTERS = ("mkl_serv_cbwr_get", "MKL_CBWR_Get")
"""Where MKL is part of PyTorch's library, and where it is a library of its own."""

# Rows, inputs and outputs: vectors, few rows, a block, more than a block, sizes that fill no vector.
_SHAPES = ((1, 64, 48), (3, 33, 17), (16, 128, 64), (64, 256, 40), (130, 96, 128))


def mkl_cbwr() -> str:
    """Return the value of MKL_CBWR in force, `OFF` if none is.

    Empty if PyTorch has no MKL.

    Whoever asks makes MKL read the variable, so it is asked when the environment stands.
    """
    if not torch.backends.mkl.is_available():
        return ""
    name = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    getter = next((getattr(library, each) for each in _GETTERS if hasattr(library, each)), None)
    if getter is None:
        return "unknown"
    setting = getter(_ALL)
    number = setting & (_STRICT - 1)
    branch = _BRANCHES[number - 1] if 0 < number <= len(_BRANCHES) else str(number)
    return f"{branch},STRICT" if setting & _STRICT else branch


def fingerprint() -> str:
    """Return a hash of the bits of fixed CPU products and functions.

    This takes a few milliseconds.
    """
    digest = hashlib.sha256()
    with torch.no_grad():
        for result in _known_results():
            digest.update(result.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _known_results() -> Iterator[Tensor]:
    """Yield products as engine and trainer compute them, and functions."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for rows, inputs, outputs in _SHAPES:
            drawn = torch.rand(rows + outputs, inputs, generator=generator, dtype=torch.float64, device="cpu")
            x, weight = (drawn - 0.5).to(dtype).split((rows, outputs))
            yield linear(x, weight)
            yield matmul(x, weight.t())
            yield torch.mm(x, weight.t().contiguous())
            yield torch.mm(weight, x.t()).sum(0)
            yield torch.addmm(weight.sum(1), x, weight.t())
            yield torch.bmm(x.expand(2, -1, -1), weight.t().expand(2, -1, -1))
            yield scaled_dot_product_attention(x[None, None], weight[None, None], weight[None, None])
            yield silu(x).softmax(-1).log()
            yield x.exp().tanh().rsqrt()
    yield torch.tensor([1e-30], dtype=torch.float32) * 1e-10  # kept or flushed to zero
    yield torch.tensor([1.0]) / 3  # of the default type
