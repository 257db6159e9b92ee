"""Evaluation metrics by hand-computed numbers."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import ChecksumReward, Scripted, make
from trinity.common.workflows import Task
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.explorer.evaluator import EvalTaskset, Evaluator, eval_metrics, subset_sizes


@pytest.mark.parametrize(
    ("num_runs", "sizes"), [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 4]), (6, [2, 4, 6]), (16, [2, 4, 8, 16])]
)
def test_subset_sizes_are_the_powers_of_two_below_and_the_number_of_runs(num_runs: int, sizes: list[int]) -> None:
    assert subset_sizes(num_runs) == sizes


def test_one_run_has_a_mean_and_its_standard_error_over_tasks() -> None:
    # The deviation of 1, 0, 0, 0 as a sample is 0.5, over the root of 4.
    assert eval_metrics({0: [1.0], 1: [0.0], 2: [0.0], 3: [0.0]}, 1) == {"mean@1": 0.25, "stderr@1": 0.25}
    assert eval_metrics({0: [1.0]}, 1) == {"mean@1": 1.0}


def test_means_and_population_deviations_are_averaged_over_tasks() -> None:
    # means 0.5, 1.0, 0.25; population deviations 0.5, 0, sqrt(0.1875)
    metrics = eval_metrics({0: [1, 0, 1, 0], 1: [1, 1, 1, 1], 2: [0, 0, 0, 1]}, 4)
    assert metrics["mean@4"] == pytest.approx((0.5 + 1.0 + 0.25) / 3)
    assert metrics["std@4"] == pytest.approx((0.5 + 0.0 + math.sqrt(0.1875)) / 3)


def test_best_and_worst_of_k_are_bootstrap_means_near_the_exact_ones() -> None:
    # With replacement from 3 correct of 4: best@k is 1 - (1/4)^k, worst@k is (3/4)^k; 1000 draws: 4 sigma < 0.06.
    metrics = eval_metrics({0: [1, 1, 0, 1]}, 4)
    assert set(metrics) == {"mean@4", "std@4", "best@2", "worst@2", "best@4", "worst@4"}
    assert metrics["best@2"] == pytest.approx(1 - 0.25**2, abs=0.06)
    assert metrics["worst@2"] == pytest.approx(0.75**2, abs=0.06)
    assert metrics["best@4"] == pytest.approx(1 - 0.25**4, abs=0.06)
    assert metrics["worst@4"] == pytest.approx(0.75**4, abs=0.06)
    assert metrics == eval_metrics({0: [1, 1, 0, 1]}, 4)


def test_equal_values_have_equal_best_and_worst() -> None:
    metrics = eval_metrics({0: [0.5] * 8, 1: [0.25] * 8}, 8)
    assert {name: value for name, value in metrics.items() if not name.startswith("std")} == {
        "mean@8": 0.375,
        **{f"{what}@{k}": 0.375 for what in ("best", "worst") for k in (2, 4, 8)},
    }


def test_a_task_that_lost_runs_enters_with_those_it_has() -> None:
    metrics = eval_metrics({0: [1.0], 1: [0.0, 0.0], 2: []}, 2)
    assert metrics["mean@2"] == 0.5
    assert metrics["best@2"] == 0.5


def test_no_completed_run_gives_no_numbers() -> None:
    assert eval_metrics({}, 4) == {}


def evaluate(rollouts: Rollouts, *tasksets: EvalTaskset) -> dict[str, float]:
    async def scenario() -> dict[str, float]:
        async with rollouts.scheduler(is_deterministic=True, max_retry_times=0) as scheduler:
            return await Evaluator(tasksets, scheduler).evaluate(6)

    return asyncio.run(scenario())


def test_temperature_0_is_greedy_and_temperature_1_is_not(rollouts: Rollouts) -> None:
    tasksets = [
        EvalTaskset(
            f"t{temperature}",
            [
                Task(
                    SimpleWorkflow,
                    repeat_times=4,
                    raw_task={"prompt": prompt},
                    rollout_args={"temperature": temperature, "max_tokens": 8},
                    reward_fn=ChecksumReward,
                    is_eval=True,
                )
                for prompt in ("1+1=", "abc")
            ],
            4,
        )
        for temperature in (0, 1)
    ]
    metrics = evaluate(rollouts, *tasksets)
    assert metrics["eval/t0/checksum/std@4"] == 0.0
    assert metrics["eval/t0/checksum/best@4"] == metrics["eval/t0/checksum/worst@4"] == metrics["eval/t0/reward/mean@4"]
    assert metrics["eval/t1/checksum/std@4"] > 0.0
    again = evaluate(rollouts, *tasksets)
    assert {k: v for k, v in again.items() if "time" not in k.split("/")} == {
        k: v for k, v in metrics.items() if "time" not in k.split("/")
    }


def test_an_evaluation_counts_what_it_lost(rollouts: Rollouts) -> None:
    tasks = [make(Scripted, 2, act=act, reward=0.5) for act in ("ok", "raise", "nan")]
    metrics = evaluate(rollouts, EvalTaskset("held_out", tasks, 2))
    assert metrics["eval/held_out/accuracy/mean@2"] == 0.5
    assert metrics["eval/held_out/finished_task_count"] == 1
    assert metrics["eval/held_out/dropped_group_count"] == 2
    assert (metrics["eval/held_out/failed_run_count"], metrics["eval/held_out/rejected_run_count"]) == (2, 2)
    assert metrics["time/eval"] > 0
