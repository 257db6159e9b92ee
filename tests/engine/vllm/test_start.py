"""The trial at the start of an engine compares what was sampled before and after a reload of the same weights."""

from __future__ import annotations

import pytest
import torch

from trinity.engine.vllm.start import difference


@pytest.mark.parametrize(
    ("after", "dtype", "found"),
    [
        ([-1.0, -2.0], torch.float32, None),
        ([-1.0, -2.00009], torch.float32, None),
        ([-1.0, -2.00011], torch.float32, "0.00011"),
        ([-1.00011, -2.0], torch.float32, "0.00011"),
        ([-1.0, -1.91], torch.bfloat16, None),
        ([-1.0, -1.75], torch.bfloat16, "0.25"),
        ([-1.0, float("nan")], torch.float32, "nan"),
        ([float("nan"), -2.0], torch.float32, "nan"),
        ([-1.0, float("-inf")], torch.bfloat16, "inf"),
    ],
)
def test_the_trial_compares_log_probabilities_as_closely_as_the_number_type_allows(
    after: list[float], dtype: torch.dtype, found: str | None
) -> None:
    said = found and f"whose log-probabilities differ by {found} on reloading the same weights"
    assert difference([-1.0, -2.0], after, dtype=dtype) == said
