"""What is estimated of a run is what the run takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SMALL_SFT: dict[str, Any] = {"algorithm": "sft", "micro_tokens": 1024}
# Three threads free and take pieces of some MiB in turn: engine, trainer and backward pass.
SMALL_GRPO: dict[str, Any] = {"response": 48, "micro_tokens": 8192}


@pytest.mark.parametrize("is_sft", [True, False], ids=["sft", "grpo, float32, recomputed layers"])
@pytest.mark.nightly
def test_the_memory_of_a_run_is_that_of_its_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[[str], ModuleType], is_sft: bool
) -> None:
    cases = script("estimate_cases")
    more = SMALL_SFT if is_sft else SMALL_GRPO | {"settings": {**cases.FLOAT32, **cases.RECOMPUTE}}
    case = cases.EstimateCase("qwen2", 384, 6, 16000, tasks=8, **more)
    monkeypatch.setitem(cases.CASES, "small", case)
    found = script("estimate").measure("small", tmp_path)
    assert abs(found["estimated"] / found["measured"] - 1) < 0.15, found
    assert found["estimated"] - found["libraries"] > 16 * found["parameters"], "weights, gradients and moments"
