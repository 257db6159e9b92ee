"""Metrics of a batch of rollouts, by numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.explorer.scripted import experience
from trinity.explorer.metrics import rollout_metrics, taskset_metrics
from trinity.explorer.outcome import BatchResult, Completed, RolloutResult


def test_detailed_metrics_have_the_distribution_over_the_tasks() -> None:
    """Rewards 0, 1, 2 and 3: the tenth percentile lies three tenths of the way from the first to the second."""
    result = BatchResult(
        4,
        [
            RolloutResult(
                task, 0, Completed([experience(reward=float(task), info={"task_index": {"taskset_id": 0}})]), 0.5
            )
            for task in range(4)
        ],
    )
    plain, detailed = rollout_metrics(result), rollout_metrics(result, is_detailed=True)
    assert plain == {name: detailed[name] for name in plain}
    expected = {"std": math.sqrt(1.25), "p10": 0.3, "p50": 1.5, "p90": 2.7}
    assert {what: detailed[f"rollout/reward/{what}"] for what in expected} == pytest.approx(expected)
    assert {name.rpartition("/")[0] for name in detailed.keys() - plain.keys()} == {
        "rollout/reward", "response_length", "prompt_length",
    }  # fmt: skip
    of_tasksets = taskset_metrics(result, {0: "sums"}, is_detailed=True)
    assert {what: of_tasksets[f"rollout/sums/reward/{what}"] for what in expected} == pytest.approx(expected)
    assert rollout_metrics(BatchResult(4), is_detailed=True).keys() == rollout_metrics(BatchResult(4)).keys()
