"""Compiled kernels of training: values and gradients are those of the library's operations."""

from __future__ import annotations

import pytest
import torch

from trinity.trainer.verl.layers import _CompiledSwiGLU, swiglu
from trinity.utils.fused.choice import LEAST_ELEMENTS

pytest.importorskip("numba")
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 1.01 * 2.0**-8}


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("size", [1, 37, 768])
def test_a_feed_forward_block_is_that_of_float64(size: int, dtype: torch.dtype) -> None:
    """Also where the exponential would overflow; a bfloat16 is rounded once."""
    generator = torch.Generator().manual_seed(size)
    fused = (torch.randn(5, 2 * size, generator=generator) * 8).to(dtype).requires_grad_()
    fused.data[0, 0], fused.data[1, 0] = 120.0, -120.0
    grad = torch.randn(5, size, generator=generator).to(dtype)
    out = _CompiledSwiGLU.apply(fused)
    out.backward(grad)
    exact = fused.detach().double().requires_grad_()
    gate, up = exact.chunk(2, -1)
    wanted = torch.nn.functional.silu(gate) * up
    wanted.backward(grad.double())
    bound = ROUNDING[dtype]
    assert fused.grad is not None and exact.grad is not None
    assert torch.allclose(out.double(), wanted, rtol=bound, atol=1e-6)
    assert torch.allclose(fused.grad.double(), exact.grad, rtol=bound, atol=1e-5)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_deterministic_run_uses_no_kernel(is_deterministic: bool) -> None:
    threads, fused = torch.get_num_threads(), torch.zeros(LEAST_ELEMENTS // 1000 + 1, 1000, requires_grad=True)
    try:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(is_deterministic)
        assert ("Compiled" in type(swiglu(fused).grad_fn).__name__) != is_deterministic
        assert "Compiled" not in type(swiglu(fused[:9]).grad_fn).__name__, "too small"
        torch.set_num_threads(2)
        assert "Compiled" not in type(swiglu(fused).grad_fn).__name__, "the library uses all threads"
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
