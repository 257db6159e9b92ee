"""What is estimated of a run is what the run takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow


def test_the_memory_of_a_run_is_that_of_its_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[[str], ModuleType]
) -> None:
    cases = script("estimate_cases")
    case = cases.EstimateCase("qwen2", 384, 6, 16000, "sft", tasks=8, micro_tokens=1024)
    monkeypatch.setitem(cases.CASES, "small", case)
    found = script("estimate").measure("small", tmp_path)
    assert abs(found["estimated"] / found["measured"] - 1) < 0.15, found
    assert found["estimated"] - found["libraries"] > 16 * found["parameters"], "weights, gradients and moments"
