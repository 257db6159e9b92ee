"""Matrix products by the faster of PyTorch's two CPU libraries.

PyTorch takes MKL for float32, which uses half the vector width on processors that are not Intel's; there oneDNN takes
less than half the time with AVX-512. Which one is used depends on the processor alone, so that two runs on one machine
compute bitwise identical results. All else (bfloat16, CUDA) is PyTorch's own choice.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

_PROBE = (896, 320)
_PROBED_ROWS = (1, 2, 7, 33, 64)
# From so many rows on the rounding of a row stays the same: measured for 16 to 1536 inputs, 17 to 1536 outputs.
LEAST_ROWS_ONEDNN, LEAST_ROWS_MKL = 2, 16


@functools.cache
def is_intel() -> bool:
    """Return whether the processor is Intel's; so is one that is not known."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return any("GenuineIntel" in line for line in file)
    except OSError:
        return True


@functools.cache
def prefers_onednn() -> bool:
    """Return whether float32 products on this machine's CPU go through oneDNN."""
    if not (torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_supported()):
        return False
    return not is_intel() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a [N, I] times b [I, O]; for code that computes its own gradient."""
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "") if _is_ours(a) else torch.mm(a, b)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad^T x [O, I], of `grad` [N, O] and `x` [N, I].

    In bfloat16 oneDNN copies the transposed factor before it multiplies. Where it multiplies in tiles (AMX), that takes
    longer than to transpose the result, so the smaller factor is copied.
    """
    is_copied = grad.dtype == torch.bfloat16 and grad.device.type == "cpu" and torch.cpu._is_amx_tile_supported()
    if is_copied and grad.shape[1] > x.shape[1]:
        return torch.mm(x.t(), grad).t()
    return matmul(grad.t(), x)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b without a gradient.

    x is [..., I], the weight W is [O, I], the bias b is [O].

    In float32 on a CPU a row's result does not depend on how many rows there are: few of them, for which the
    libraries have another algorithm with another rounding, are computed as more.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu":
        return _linear(x, weight, bias)
    return _with_rows(x, weight, bias, least=LEAST_ROWS_ONEDNN if prefers_onednn() else LEAST_ROWS_MKL)


def _with_rows(x: Tensor, weight: Tensor, bias: Tensor | None, *, least: int) -> Tensor:
    """Return x W^T + b; fewer rows than `least` are filled up."""
    num_rows = x.shape[:-1].numel()
    if not 0 < num_rows < least:
        return _linear(x, weight, bias)
    filled = x.new_zeros(least, x.shape[-1])
    filled[:num_rows] = x.reshape(num_rows, -1)
    return _linear(filled, weight, bias)[:num_rows].view(*x.shape[:-1], -1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.is_mkldnn or _is_ours(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.nn.functional.linear(x, weight, bias)


def _is_ours(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0 and prefers_onednn()


class Weight:
    """A weight W [O, I], in the layout that is multiplied fastest.

    With few rows a product takes as long as reading W, and oneDNN reads its own layout up to twice as fast as rows. The
    layout is used where it changes no bit of a product, or where bits do not matter; there is then no other copy of W.
    `plain` brings it back into rows, and the next product takes it out of them again.

    Args:
        plain: W, contiguous.
        is_shared: others read `plain` too, so it stays beside the library's layout.
        is_compiled: a compiled kernel multiplies it, in panels, where the library is slow (`multiplies_slowly`); bits
            of a row may depend on how many rows there are, and on the layout.
    """

    def __init__(self, plain: Tensor, *, is_shared: bool = False, is_compiled: bool = False) -> None:
        self._plain: Tensor | None = plain
        self._packed: Tensor | None = None
        self._least_rows = 1
        self._is_shared = is_shared
        self._is_compiled = is_compiled
        self._has_panels = is_compiled and _has_panels(plain, is_shared=is_shared)

    def plain(self) -> Tensor:
        """Return W [O, I], to be read and written before the next product."""
        if self._plain is None:
            assert self._packed is not None, "a weight is there in one layout at least"
            self._plain = _kernels().unpacked(self._packed) if self._has_panels else self._packed.to_dense()
        self._packed = None
        return self._plain

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x W^T + b, [..., O], without a gradient; see `linear`."""
        if self._packed is None:
            assert self._plain is not None, "a weight is there in one layout at least"
            if not self._has_panels and not self._is_packed():
                return (_linear if self._is_compiled else linear)(x, self._plain, bias)
            self._packed = _kernels().packed(self._plain) if self._has_panels else _pack(self._plain)
            self._least_rows = 1 if self._is_compiled else _least_rows(self._packed)
            if not self._is_shared:
                self._plain = None
        if self._has_panels:
            return _kernels().linear(x, self._packed, bias)
        return _with_rows(x, self._packed, bias, least=self._least_rows)

    def _is_packed(self) -> bool:
        assert self._plain is not None, "asked for before the layout is chosen"
        kind = self._plain.dtype, self._plain.device.type
        return _can_pack(*kind) or (self._is_compiled and _reads_faster_packed(*kind))


MOST_COPIED = 32_000_000
"""Elements of a weight of which panels may be held beside its rows."""


def multiplies_slowly() -> bool:
    """Return whether compiled kernels multiply float32 faster here."""
    return torch.cpu._is_avx2_supported() and not torch.cpu._is_avx512_supported() and not is_intel()


def _has_panels(plain: Tensor, *, is_shared: bool) -> bool:
    is_served = plain.dtype == torch.float32 and plain.device.type == "cpu" and multiplies_slowly()
    fits = not is_shared or plain.numel() <= MOST_COPIED
    return is_served and fits and _kernels().can_multiply(plain.shape[1], plain.shape[0])


def _kernels() -> ModuleType:
    from trinity.utils.fused import products  # with Numba, half a second of imports

    return products


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _least_rows(packed: Tensor) -> int:
    """Return from how many rows on this weight's products round alike.

    In its own layout oneDNN multiplies one row as it does several, up to some number of inputs; a product with two
    equal rows shows it.
    """
    if packed.dtype != torch.float32:
        return 1
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, packed.shape[1], generator=generator).expand(LEAST_ROWS_ONEDNN, -1).contiguous()
    is_alike = torch.equal(_linear(x[:1], packed, None), _linear(x, packed, None)[:1])
    return 1 if is_alike else LEAST_ROWS_ONEDNN


def _reads_faster_packed(dtype: torch.dtype, device_type: str) -> bool:
    """Return whether oneDNN's layout is faster than MKL's rows, in other bits.

    With AVX-512 on an Intel processor eight rows take half the time, a single one a sixth longer.
    """
    has_library = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return dtype == torch.float32 and device_type == "cpu" and has_library and torch.cpu._is_avx512_supported()


@functools.cache
def _can_pack(dtype: torch.dtype, device_type: str) -> bool:
    """Return whether products are bitwise the same in oneDNN's own layout."""
    is_served = dtype == torch.bfloat16 or (dtype == torch.float32 and prefers_onednn())
    if device_type != "cpu" or not is_served or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = _PROBE
    x, weight = (torch.randn(size, inputs, generator=generator).to(dtype) for size in (max(_PROBED_ROWS), outputs))
    packed = _pack(weight)
    return all(torch.equal(linear(x[:rows], packed), linear(x[:rows], weight)) for rows in _PROBED_ROWS)
