from __future__ import annotations

import pytest
import torch

from trinity.utils.products import linear, matmul


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
