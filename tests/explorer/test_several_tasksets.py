"""An explorer with several tasksets: what comes of each, feedback to the right selector, and exact resume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.buffer.test_task_mixture import mixture
from tests.explorer import scripted  # noqa: F401  registers the workflows
from tests.explorer.jobs import Job, write_rows
from tests.explorer.rollouts import Rollouts
from trinity.common.errors import WorkflowError
from trinity.explorer.step_tasks import StepTasks

BY_DIFFICULTY = {
    "selector_type": "difficulty_based",
    "feature_keys": ["weak", "strong"],
    "kwargs": {"tau": 0.5, "target_reward": 0.5},
}


def job(folder: Path, rollouts: Rollouts, **sections: Any) -> Job:
    """Return a job of 4 explore steps with two tasks each, of two tasksets and selectors, with two runs a task."""
    folder.mkdir(parents=True)
    made = Job(folder, rollouts)
    shared = {"default_workflow_type": made.workflow, "format": {"prompt_key": "question"}, "repeat_times": 2}
    tasksets = []
    for index, (name, size) in enumerate({"sums": 5, "words": 3}.items()):
        rows = [{"question": f"{name} {row}", "weak": row / 10, "strong": 0.9} for row in range(size)]
        place = {"name": name, "index": index, "path": write_rows(folder / f"{name}.jsonl", rows)}
        tasksets.append(place | shared | ({"data_selector": BY_DIFFICULTY} if name == "sums" else {}))
    made.sections = {
        "buffer": {"explorer_input": {"tasksets": tasksets}, "train_batch_size": 4},
        "data_processor": {"experience_pipeline": {"operators": [{"name": "pass_rate_calculator"}]}},
    } | sections
    return made


@pytest.mark.parametrize("kept", [0, 2])
def test_a_run_of_several_tasksets_continues_exactly(rollouts: Rollouts, tmp_path: Path, kept: int) -> None:
    whole, cut = job(tmp_path / "whole", rollouts), job(tmp_path / "cut", rollouts)
    assert whole.run().step == 4
    cut.run()
    cut.run_again(kept)
    assert cut.store_rows() == whole.store_rows()
    assert cut.metrics() == whole.metrics()


def test_every_taskset_has_its_metrics_and_its_selector_hears_of_its_tasks(rollouts: Rollouts, tmp_path: Path) -> None:
    run = job(tmp_path / "job", rollouts)
    run.run()
    lines = [line for line in run.metrics() if "rollout/finished_task_count" in line]
    counts = [[line[f"rollout/{name}/finished_task_count"] for name in ("sums", "words")] for line in lines]
    assert [sum(step) for step in counts] == [2, 2, 2, 2]
    assert [sum(of) for of in zip(*counts, strict=True)] == [5, 3]  # one epoch: every row once
    for line in lines:
        own = [
            line[f"rollout/{name}/reward/mean"] for name in ("sums", "words") if f"rollout/{name}/reward/mean" in line
        ]
        assert min(own) <= line["rollout/reward/mean"] <= max(own)
    told = {(e.info["task_index"]["taskset_id"], e.info["task_index"]["index"]) for batch in run.seen for e in batch}
    assert {row for number, row in told if number == 1} == {0, 1, 2}
    states = run.snapshots[-1]["readers"]["taskset"]["tasksets"]
    assert states["0"]["selector"]["capability"] is not None and states["1"]["selector"].keys() == {
        "position", "seed", "num_rows",
    }  # fmt: skip


def test_tasks_that_begin_one_by_one_come_from_all_tasksets(rollouts: Rollouts, tmp_path: Path) -> None:
    sync = {"sync_style": "fully_async", "max_staleness": 1, "update_in_flight": True}
    quiet = {"eval_on_startup": False, "eval_interval": None}
    run = job(tmp_path / "job", rollouts, deterministic=False, synchronizer=sync, explorer=quiet)
    assert run.run().step == 4
    names = ("sums", "words")
    lines = [line for line in run.metrics() if "rollout/finished_task_count" in line]
    assert [sum(line[f"rollout/{name}/finished_task_count"] for line in lines) for name in names] == [5, 3]


def test_feedback_for_a_taskset_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async def call(function: Any, *args: Any) -> Any:
        return function(*args)

    tasks = StepTasks(mixture(tmp_path), batch_size=2, call=call)
    for given in ({2: {"indices": [0], "values": [1.0]}}, {"rate": 0.5}):
        with pytest.raises(WorkflowError, match=r"E5162.*\(0 or 1\)"):
            asyncio.run(tasks.feedback(given))
