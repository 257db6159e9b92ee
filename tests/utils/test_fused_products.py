"""Products by compiled kernels: those of exact arithmetic, with bits that depend on no other row."""

from __future__ import annotations

import pytest
import torch

from trinity.utils.products import Weight

products = pytest.importorskip("trinity.utils.fused.products", reason="needs numba", exc_type=ImportError)
ROWS = (1, 2, 5, 6, 7, 8, 13, 193)


@pytest.mark.parametrize("size", [(16, 1), (48, 17), (64, 512), (32, 1100)])
def test_kernels_multiply(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((max(ROWS), size[1]), size, size[:1])
    x, weight, bias = (torch.randint(-4, 5, shape, generator=generator).float() for shape in shapes)
    panels = products.packed(weight)
    assert torch.equal(products.unpacked(panels), weight)
    for rows in ROWS:  # small whole numbers: no rounding
        wanted = x[:rows].double() @ weight.double().t()
        assert torch.equal(products.linear(x[:rows], panels).double(), wanted), rows
        assert torch.equal(products.linear(x[:rows], panels, bias).double(), wanted + bias.double()), rows
    assert products.linear(x[:0], panels).shape == (0, size[0])
    wide = torch.cat([x, x], 1)[:, size[1] :]  # rows at a distance
    assert torch.equal(products.linear(wide, panels), products.linear(x, panels))
    assert torch.equal(products.linear(x[None, :3, None], panels)[0, :, 0], products.linear(x[:3], panels))


def test_a_rows_bits_depend_on_no_other_row() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((max(ROWS), 700), (48, 700)))
    panels = products.packed(weight)
    every = products.linear(x, panels)
    assert float((every.double() - x.double() @ weight.double().t()).abs().max()) < 1e-3
    assert all(torch.equal(products.linear(x[:rows], panels), every[:rows]) for rows in ROWS)


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_written_into_a_compiled_weight_is_multiplied(is_shared: bool) -> None:
    """On every processor: where the library is fast, it multiplies."""
    generator = torch.Generator().manual_seed(2)
    x, first, second = (
        torch.randint(-4, 5, size, generator=generator).float() for size in ((5, 64), (48, 64), (48, 64))
    )
    kept = Weight(first.clone(), is_shared=is_shared, is_compiled=True)
    for wanted in (first, second, first):
        kept.plain()[:20].copy_(wanted[:20])
        kept.plain()[20:].copy_(wanted[20:])
        for _ in range(2):
            assert torch.equal(kept.product(x), x @ wanted.t())
    assert torch.equal(kept.plain(), first)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 15, 24])
@pytest.mark.parametrize("adds", [False, True])
def test_a_product_of_two_vectors_a_row_has_the_bits_of_one(rows: int, adds: bool) -> None:
    """Each processor uses one of the two; vectors of a term may lie together or apart."""
    from trinity.utils.fused.tile import multiply, multiply_double
    from trinity.utils.fused.vectors import WIDTH

    generator, terms = torch.Generator().manual_seed(rows), 37
    a, b = torch.randn(rows, terms, generator=generator), torch.randn(2, terms, WIDTH, generator=generator)
    start = torch.randn(rows, 2 * WIDTH, generator=generator)
    together = b.transpose(0, 1).reshape(terms, 2 * WIDTH).contiguous()
    one, other, apart = start.clone(), start.clone(), start.clone()
    for half in range(2):
        place = one.data_ptr() + 4 * WIDTH * half
        multiply(a.data_ptr(), (terms, 1), b[half].data_ptr(), place, (WIDTH, 2 * WIDTH), rows, terms, adds)
    for out, factor, step, distance in ((other, b, WIDTH, terms * WIDTH), (apart, together, 2 * WIDTH, WIDTH)):
        places = a.data_ptr(), (terms, 1), factor.data_ptr(), out.data_ptr()
        multiply_double(*places, (step, 2 * WIDTH), rows, terms, adds, distance)
    assert torch.equal(one, other) and torch.equal(one, apart)
    wanted = a.double() @ together.double() + start.double() * adds
    assert torch.allclose(one.double(), wanted, atol=1e-5)
