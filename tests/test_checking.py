"""The run-time check of shapes is on while tests run, for the first calls."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from tests import checked_calls
from trinity.algorithm.utils import aggregate_loss


def test_a_wrong_shape_fails() -> None:
    values = torch.ones(4, 6)
    assert aggregate_loss(values, torch.ones(4, 6, dtype=torch.bool)).item() == 1.0
    with pytest.raises(TypeCheckError):
        aggregate_loss(values, torch.ones(4, 5, dtype=torch.bool))


def test_later_calls_of_a_test_are_spared_the_check() -> None:
    values, other = torch.ones(4, 6), torch.ones(4, 1, dtype=torch.bool)
    checked_calls.begin_test()
    for _ in range(checked_calls.CALLS):
        aggregate_loss(values, torch.ones(4, 6, dtype=torch.bool))
    aggregate_loss(values, other)
    checked_calls.begin_test()
    with pytest.raises(TypeCheckError):
        aggregate_loss(values, other)


@given(st.none())
def test_no_example_of_a_property_has_a_deadline(_: None) -> None:
    assert settings.default is not None and settings.default.deadline is None
