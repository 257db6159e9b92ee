"""The run-time check of shapes is on while tests run."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from trinity.algorithm.utils import aggregate_loss


def test_a_wrong_shape_fails() -> None:
    values = torch.ones(4, 6)
    assert aggregate_loss(values, torch.ones(4, 6, dtype=torch.bool)).item() == 1.0
    with pytest.raises(TypeCheckError):
        aggregate_loss(values, torch.ones(4, 5, dtype=torch.bool))
