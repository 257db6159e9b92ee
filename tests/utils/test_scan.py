from __future__ import annotations

import pytest
import torch

from trinity.utils.scan import by_doubling, cumulative_sum


@pytest.mark.parametrize("width", [1, 2, 3, 64, 1000])
def test_doubling_adds_up_what_is_up_to_each_place(width: int) -> None:
    x = torch.rand(3, 2, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    assert torch.allclose(by_doubling(x), x.cumsum(-1), rtol=1e-14)
    whole = torch.arange(float(width))
    assert torch.equal(by_doubling(whole), whole.cumsum(-1)), "sums of integers are exact in any order"


def test_a_row_does_not_depend_on_the_others() -> None:
    x = torch.rand(5, 333, generator=torch.Generator().manual_seed(0))
    whole = by_doubling(x)
    assert all(torch.equal(by_doubling(x[i : i + 1])[0], whole[i]) for i in range(5))


def test_on_a_cpu_it_is_the_librarys_sum() -> None:
    x = torch.rand(4, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(cumulative_sum(x), x.cumsum(-1))
    assert torch.equal(cumulative_sum(x, torch.float64), x.cumsum(-1, dtype=torch.float64))
