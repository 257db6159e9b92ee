"""Compiled kernels of training: values and gradients are those of the library's operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trinity.trainer.verl import logprob
from trinity.trainer.verl.compiled_layers import CompiledNorm, CompiledRotation, CompiledSwiGLU, column_sums
from trinity.trainer.verl.layers import swiglu
from trinity.trainer.verl.output_layer import OutputLayer
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
    out = CompiledSwiGLU.apply(fused)
    out.backward(grad)
    exact = fused.detach().double().requires_grad_()
    gate, up = exact.chunk(2, -1)
    wanted = torch.nn.functional.silu(gate) * up
    wanted.backward(grad.double())
    bound = ROUNDING[dtype]
    assert fused.grad is not None and exact.grad is not None
    assert torch.allclose(out.double(), wanted, rtol=bound, atol=1e-6)
    assert torch.allclose(fused.grad.double(), exact.grad, rtol=bound, atol=1e-5)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """Return whether numbers were computed in float32 and rounded once."""
    assert found.dtype == dtype
    return torch.allclose(found.double(), wanted, rtol=ROUNDING[dtype], atol=2e-6 * float(wanted.detach().abs().max()))


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("is_sum", [False, True])
@pytest.mark.parametrize("shape", [(1, 16), (300, 37), (7, 3, 64)])
def test_a_norm_and_a_sum_are_those_of_float64(shape: tuple[int, ...], is_sum: bool, dtype: torch.dtype) -> None:
    """More rows than are summed at once, heads of a token, and the sum's own gradient."""
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape, generator=generator).requires_grad_()
    added = (3 * torch.randn(shape, generator=generator)).to(dtype).requires_grad_() if is_sum else None
    weight = (1 + 0.1 * torch.randn(shape[-1], generator=generator)).requires_grad_()
    leaves = [leaf for leaf in (x, weight, added) if leaf is not None]
    grads = [torch.randn(shape, generator=generator), torch.randn(shape, generator=generator).to(dtype)]
    total, out = CompiledNorm.apply(x, added, weight, 1e-6, dtype)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    summed = exact[0] + exact[2] if is_sum else exact[0]
    wanted = summed * torch.rsqrt(summed.square().mean(-1, keepdim=True) + 1e-6) * exact[1]
    outputs = [(out, wanted, grads[1])] + ([(total, summed, grads[0])] if is_sum else [])
    found = torch.autograd.grad([o for o, _, _ in outputs], leaves, [g for _, _, g in outputs])
    right = torch.autograd.grad([o for _, o, _ in outputs], exact, [g.double() for _, _, g in outputs])
    assert (total is not None) == is_sum and close(out, wanted, dtype)
    assert total is None or close(total, summed, torch.float32)
    for one, other, leaf in zip(found, right, leaves, strict=True):
        assert close(one, other, leaf.dtype)


def test_a_norm_without_a_gradient_passes_that_of_the_sum() -> None:
    x, added = torch.randn(4, 8).requires_grad_(), torch.randn(4, 8).bfloat16().requires_grad_()
    total, _ = CompiledNorm.apply(x, added, torch.ones(8), 1e-6, torch.bfloat16)
    of_x, of_added = torch.autograd.grad(total.sum(), (x, added))
    assert torch.equal(of_x, torch.ones(4, 8)) and torch.equal(of_added, torch.ones(4, 8).bfloat16())


@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_a_rotation_and_its_gradient_are_those_of_float64(dtype: torch.dtype) -> None:
    """Of heads that are a part of a wider tensor, as in a layer."""
    generator = torch.Generator().manual_seed(5)
    heads = torch.randn(6, 5, 32, generator=generator).to(dtype)
    cos, sin = (torch.randn(6, 1, 32, generator=generator).to(dtype) for _ in range(2))
    x = heads[:, 1:4].detach().requires_grad_()
    out = CompiledRotation.apply(x, cos, sin)
    grad = torch.randn(6, 3, 32, generator=generator).to(dtype)
    exact = x.detach().double().requires_grad_()
    wanted = exact * cos.double() + exact.roll(16, -1) * sin.double()
    assert close(out, wanted, dtype)
    (found,), (right,) = torch.autograd.grad(out, x, grad), torch.autograd.grad(wanted, exact, grad.double())
    assert close(found, right, dtype)


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("is_small", [False, True])
def test_sums_of_columns_are_those_of_float64(is_small: bool, dtype: torch.dtype) -> None:
    """Of numbers whose mean is far from zero, where one long sum would lose the last digits."""
    x = (3 + torch.randn(4099, 37, generator=torch.Generator().manual_seed(4))).to(dtype)
    x = x[:3, :5] if is_small else x
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        found = column_sums(x)
    finally:
        torch.set_num_threads(threads)
    assert found.dtype == torch.float32 and torch.allclose(found.double(), x.double().sum(0), rtol=1e-6)


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("chunk_bytes", [32 * 2**20, 4 * 50 * 3])
def test_log_probabilities_are_those_of_float64(
    chunk_bytes: int, with_entropy: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one chunk and in several, at a temperature, with an improbable label."""
    monkeypatch.setitem(logprob.CHUNK_BYTES, "cpu", chunk_bytes)
    generator = torch.Generator().manual_seed(9)
    hidden = torch.randn(8, 16, generator=generator).to(dtype).requires_grad_()
    parameter = torch.randn(50, 16, generator=generator).to(dtype).float().requires_grad_()
    labels, grads = torch.randint(0, 50, (8,), generator=generator), torch.randn(2, 8, generator=generator)
    layer = OutputLayer(parameter.detach().to(dtype), None, parameter)
    found = logprob._CompiledLogprob.apply(hidden, parameter, labels, layer, 0.7, with_entropy)
    exact = [leaf.detach().double().requires_grad_() for leaf in (hidden, parameter)]
    products = exact[0] @ exact[1].t()
    products = products + (products.to(dtype).double() - products).detach()  # products are rounded by the library
    logp = torch.log_softmax(products / 0.7, 1)
    wanted = [logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(1)][: 1 + with_entropy]
    for one, other in zip(found, wanted, strict=False):
        assert torch.allclose(one.double(), other, rtol=1e-5, atol=1e-5)
    outputs = found[: len(wanted)]
    got = torch.autograd.grad(outputs, (hidden, parameter), tuple(grads[: len(wanted)]))
    right = torch.autograd.grad(wanted, exact, tuple(grads[: len(wanted)].double()))
    for one, other in zip(got, right, strict=True):
        assert float((one - other).norm()) <= {torch.float32: 2e-6, torch.bfloat16: 6e-3}[dtype] * float(other.norm())
    assert with_entropy or not bool(found[1].any())


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


def test_a_rotation_of_several_data_types_is_refused() -> None:
    heads, cos, sin = torch.zeros(4, 2, 32), *(torch.zeros(4, 1, 32).bfloat16() for _ in range(2))
    with pytest.raises(TypeError, match="one data type"):
        CompiledRotation.apply(heads, cos, sin)
