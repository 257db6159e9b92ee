from __future__ import annotations

import pytest
import torch

from trinity.utils.products import Weight, linear, matmul, weight_gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_exact_arithmetic(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randint(-4, 5, shape, generator=generator).to(dtype) for shape in ((7, 5), (3, 5), (3,)))
    wanted = x.double() @ weight.double().t()  # small whole numbers: no rounding in either type
    assert torch.equal(linear(x, weight).double(), wanted)
    assert torch.equal(linear(x, weight, bias).double(), wanted + bias.double())
    assert torch.equal(linear(x[None], weight)[0].double(), wanted)
    assert torch.equal(matmul(x, weight.t()).double(), wanted)
    assert torch.equal(matmul(x.t(), x).double(), x.double().t() @ x.double())


def test_no_rows_and_no_inputs_give_empty_and_zero_products() -> None:
    assert linear(torch.zeros(0, 5), torch.ones(3, 5)).shape == (0, 3)
    assert torch.equal(matmul(torch.zeros(2, 0), torch.zeros(0, 3)), torch.zeros(2, 3))


def test_the_same_product_has_the_same_bits_again() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((130, 64), (48, 64)))
    first = linear(x, weight)
    assert torch.equal(first, linear(x.clone(), weight.clone()))
    assert float((first.double() - x.double() @ weight.double().t()).abs().max()) < 1e-4


@pytest.mark.parametrize("inputs", [16, 128, 384])
def test_a_row_has_the_same_bits_however_many_rows_there_are(inputs: int) -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight = torch.randn(600, inputs, generator=generator), torch.randn(48, inputs, generator=generator)
    every = linear(x, weight)
    for rows in (1, 2, 3, 5, 8, 15, 16, 17, 64):
        assert torch.equal(linear(x[:rows], weight), every[:rows])
    assert torch.equal(linear(x[None, :3, None], weight)[0, :, 0], every[:3])
    assert torch.equal(linear(x[0], weight), every[0])
    assert float((every.double() - x.double() @ weight.double().t()).abs().max()) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(48, 16), (33, 17), (384, 896), (2000, 1024), (896, 1536), (896, 4864)])
def test_a_weight_in_its_own_layout_gives_the_same_bits(size: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((300, size[1]), size, size[:1]))
    kept = Weight(weight.clone())
    for rows in (1, 2, 3, 5, 8, 15, 16, 17, 64, 300):
        assert torch.equal(kept.product(x[:rows]), linear(x[:rows], weight)), rows
        assert torch.equal(kept.product(x[:rows], bias), linear(x[:rows], weight, bias)), rows
    assert torch.equal(kept.product(x[None, :3, None]), linear(x[None, :3, None], weight))
    assert torch.equal(kept.plain(), weight)


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_written_into_a_weight_is_multiplied(is_shared: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    x, first, second = (torch.randn(shape, generator=generator) for shape in ((5, 64), (48, 64), (48, 64)))
    own = first.clone()
    kept = Weight(own, is_shared=is_shared)
    for wanted in (first, second, first):
        kept.plain()[:20].copy_(wanted[:20])
        kept.plain()[20:].copy_(wanted[20:])
        for _ in range(2):
            assert torch.equal(kept.product(x), linear(x, wanted))
    assert (kept.plain() is own) or not is_shared


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 48), (48, 16)])
def test_the_gradient_of_a_weight_is_the_same_whichever_factor_is_transposed(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    grad, x = (torch.randn(40, size, generator=generator).to(dtype) for size in (outputs, inputs))
    found, exact = weight_gradient(grad, x), grad.double().t() @ x.double()
    assert found.shape == (outputs, inputs) and found.dtype == dtype
    bound = 1e-5 if dtype == torch.float32 else 2.0**-7
    assert torch.allclose(found.double(), exact, rtol=bound, atol=bound * float(exact.abs().max()))


@pytest.mark.parametrize("rows", [1, 2, 8, 33])
def test_a_weight_whose_layout_may_change_bits_is_multiplied_and_written_all_the_same(rows: int) -> None:
    """Runs that are not deterministic take the layout that is read fastest, on every processor."""
    generator = torch.Generator().manual_seed(5)
    x, first, second, bias = (torch.randn(size, generator=generator) for size in ((rows, 64), (48, 64), (48, 64), 48))
    kept = Weight(first.clone(), is_compiled=True)
    for weight in (first, second):
        kept.plain().copy_(weight)
        for _ in range(2):
            assert torch.allclose(kept.product(x, bias), linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    assert torch.equal(kept.plain(), second)
