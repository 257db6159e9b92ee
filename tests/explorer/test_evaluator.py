"""Evaluation metrics by hand-computed numbers."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import ChecksumReward, Scripted, experience, make
from trinity.common.workflows import Task
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.explorer.answers import AnswerFiles
from trinity.explorer.evaluator import EvalTaskset, Evaluator, eval_metrics, subset_sizes
from trinity.explorer.outcome import BatchResult, Completed, RolloutResult


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


def test_detailed_metrics_are_the_distribution_over_the_tasks() -> None:
    """Means of the tasks are 0, 0.5 and 1; their tenth percentile lies a fifth of the way from 0 to 0.5."""
    values = {0: [0.0, 0.0], 1: [0.0, 1.0], 2: [1.0, 1.0]}
    plain, detailed = eval_metrics(values, 2), eval_metrics(values, 2, is_detailed=True)
    assert plain == {name: detailed[name] for name in plain}
    added = {name: value for name, value in detailed.items() if name not in plain and name.startswith("mean@2/")}
    assert added == pytest.approx(
        {
            "mean@2/mean": 0.5, "mean@2/max": 1.0, "mean@2/min": 0.0, "mean@2/std": math.sqrt(1 / 6),
            "mean@2/p10": 0.1, "mean@2/p50": 0.5, "mean@2/p90": 0.9,
        }
    )  # fmt: skip
    assert not [name for name in detailed if name.startswith("stderr@2/")]


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


def answers_of(folder: Path, limit: int = 1 << 20) -> AnswerFiles:
    return AnswerFiles(folder, explorer="one", limit=limit, temperature=0.75)


def test_every_answer_of_an_evaluation_is_kept_and_what_became_of_the_others(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"workflow": SimpleWorkflow, "repeat_times": 2, "is_eval": True}
    settings |= {"reward_fn": ChecksumReward, "format_args": {"prompt_key": "q", "response_key": "a"}}
    tasks = [
        Task(raw_task={"q": q, "a": f"{q}!"}, index={"index": place}, rollout_args=arguments, **settings)
        for place, (q, arguments) in enumerate([("1+1=", {"temperature": 0, "max_tokens": 8}), ("2", {})], 4)
    ]
    failing = EvalTaskset("failing", [make(Scripted, 1, act=act, reward=0.5) for act in ("raise", "nan")], 1)

    async def scenario() -> None:
        async with rollouts.scheduler(is_deterministic=True, max_retry_times=0) as scheduler:
            tasksets = [EvalTaskset("held_out", tasks, 2), failing]
            evaluator = Evaluator(tasksets, scheduler, answers={"eval": answers_of(tmp_path)})
            metrics = await evaluator.evaluate(6)
            found.extend(read(tmp_path / "held_out" / "one_step_6.jsonl"))
            rewards = [line["reward"] for line in found]
            assert metrics["eval/held_out/reward/mean@2"] == pytest.approx(sum(rewards) / 4)
            await evaluator.evaluate(6)
            await evaluator.evaluate(7, prefix="other")

    found: list[dict[str, Any]] = []
    asyncio.run(scenario())
    assert [(line["task"], line["run"], line["turn"]) for line in found] == [(4, 0, 0), (4, 1, 0), (5, 0, 0), (5, 1, 0)]
    assert [line["temperature"] for line in found] == [0, 0, 0.75, 0.75], "greedy, and sampled as the model says"
    assert [(line["prompt"], line["truth"]) for line in found[::2]] == [("1+1=", "1+1=!"), ("2", "2!")]
    assert found[0]["response"] == found[1]["response"] and found[2]["response"] != found[3]["response"]
    assert all(line["metrics"]["checksum"] == line["reward"] and line["model_version"] == 0 for line in found)
    assert read(tmp_path / "held_out" / "one_step_6.jsonl") == found, "repeated, it is replaced"
    lost = read(tmp_path / "failing" / "one_step_6.jsonl")
    assert [(line["outcome"], line["step"]) for line in lost] == [("Failed", 6), ("Rejected", 6)]
    assert "reward must be a finite number" in lost[1]["reason"] and len(list(tmp_path.rglob("*.jsonl"))) == 2


def test_the_oldest_answers_go_when_there_are_too_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = BatchResult(1, [RolloutResult(0, 0, Completed([experience(response_text="x" * 600)]), 0.1)])
    files = answers_of(tmp_path, limit=2500)
    for step in range(1, 7):
        files.write("held_out", step, [make(Scripted)], result)
    names = sorted(file.name for file in tmp_path.rglob("*.jsonl"))
    assert names[-1] == "one_step_6.jsonl" and 1 < len(names) < 5 and names == sorted(names)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.jsonl")) <= 2500
    assert sum("the oldest files are deleted" in record.getMessage() for record in caplog.records) == 1
    answers_of(tmp_path, limit=1).write("held_out", 7, [make(Scripted)], result)
    assert [file.name for file in tmp_path.rglob("*.jsonl")] == ["one_step_7.jsonl"]
    answers_of(tmp_path / "none", limit=0).write("held_out", 1, [make(Scripted)], result)
    assert not (tmp_path / "none").exists()


def test_a_disk_that_refuses_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "held_out").write_text("a file in the way")
    answers_of(tmp_path).write("held_out", 3, [make(Scripted)], BatchResult(1))
    assert "the responses of the evaluation after step 3 are not kept" in caplog.text


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
