"""The operator that reports the mean rewards of tasks to selectors."""

from __future__ import annotations

from typing import Any

from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS
from trinity.common.constants import SELECTOR_METRIC
from trinity.common.experience import Experience

# Ranges of the mean reward of a task, without their bounds, by the published name of the metric.
RANGES = {
    "valid_ratio": (0.0, 1.0),
    "strict_valid_ratio": (1 / 16 + 1e-3, 15 / 16 - 1e-3),
    "<1_ratio": (float("-inf"), 1.0),
    ">0_ratio": (0.0, float("inf")),
    "<15_16_ratio": (float("-inf"), 15 / 16 - 1e-3),
    ">1_16_ratio": (1 / 16 + 1e-3, float("inf")),
}


@EXPERIENCE_OPERATORS.register_module("pass_rate_calculator")
class PassRateCalculator(ExperienceOperatorV1):
    """Reports the mean reward of each task to the taskset's selector.

    Experiences without a reward are left out. The metrics `selection/...` are the shares of tasks with a mean reward in
    a range.
    """

    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Return the experiences unchanged, and the mean reward of each task."""
        rewards: dict[tuple[int, int], list[float]] = {}
        for exp in exps:
            index = exp.info.get("task_index") or {}
            if exp.reward is not None and index:
                rewards.setdefault((index["taskset_id"], index["index"]), []).append(exp.reward)
        told: dict[int, dict[str, list[Any]]] = {}
        for (taskset, row), of_task in rewards.items():
            own = told.setdefault(taskset, {"indices": [], "values": []})
            own["indices"].append(row)
            own["values"].append(sum(of_task) / len(of_task))
        means = [mean for own in told.values() for mean in own["values"]]
        shares = {
            f"selection/{name}": sum(low < mean < high for mean in means) / len(means)
            for name, (low, high) in RANGES.items()
            if means
        }
        return exps, {SELECTOR_METRIC: told, **shares} if told else {}
