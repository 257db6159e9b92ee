"""The rollout loop: versions, evaluation, the store, resume, and the ways it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.explorer import scripted
from tests.explorer.jobs import Job
from tests.explorer.rollouts import Rollouts
from trinity.buffer.store import ExperienceStore
from trinity.common.errors import CheckpointError, SyncError, WorkflowError
from trinity.explorer.assembly import store_scope


def test_every_step_is_served_by_its_version_and_evaluated_when_due(rollouts: Rollouts, tmp_path: Path) -> None:
    job = Job(tmp_path, rollouts)
    summary = job.run()
    assert summary.step == 4 and summary.experience_count == 4 * 8
    assert [{e.info["model_version"] for e in batch} for batch in job.seen] == [{0}, {1}, {2}, {3}]
    assert [e.eid.uid for e in job.seen[1]] == [f"2/{t}/{r}/{s}/" for t in range(2) for r in range(2) for s in range(2)]
    assert sorted(summary.evaluations) == [0, 2, 4]
    lines = job.metrics()
    assert [(line["step"], line.get("eval/model_version")) for line in lines] == [
        (0, 0), (1, None), (2, None), (2, 2), (3, None), (4, None), (4, 4),
    ]  # fmt: skip
    assert {"mean@2", "stderr@2", "std@2", "best@2", "worst@2"} == {
        key.rsplit("/", 1)[1] for key in lines[0] if key.startswith("eval/held_out/reward/")
    }
    step = lines[1]
    assert step["rollout/model_version"] == 0 and lines[2]["rollout/model_version"] == 1
    assert step["rollout/finished_task_count"] == 2 and step["rollout/failed_run_count"] == 0
    assert step["experience_pipeline/experience_count"] == 8
    assert "experience_pipeline/group_advantages/reward_mean/mean" in step


@pytest.mark.parametrize(
    ("rhythm", "versions"), [({"sync_offset": 1}, [0, 0, 1, 2]), ({"sync_interval": 2}, [0, 0, 2, 2])]
)
def test_interval_and_offset_decide_the_version(
    rollouts: Rollouts, tmp_path: Path, rhythm: dict[str, int], versions: list[int]
) -> None:
    job = Job(tmp_path, rollouts, sections={"synchronizer": rhythm})
    job.run()
    assert [batch[0].info["model_version"] for batch in job.seen] == versions


def test_two_equal_runs_give_equal_experiences_and_metrics(rollouts: Rollouts, tmp_path: Path) -> None:
    first, second = Job(tmp_path / "a", rollouts), Job(tmp_path / "b", rollouts)
    first.run()
    second.run()
    assert first.store_rows() == second.store_rows()
    assert first.metrics() == second.metrics()


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_resumed_run_ends_as_the_uninterrupted_one(rollouts: Rollouts, tmp_path: Path, kept: int) -> None:
    whole, cut = Job(tmp_path / "whole", rollouts), Job(tmp_path / "cut", rollouts)
    whole.run()
    cut.run()
    summary = cut.run_again(kept)
    assert summary.step == 4 and 0 not in summary.evaluations
    assert summary.experience_count == 0  # the rows were in the store already
    assert cut.store_rows() == whole.store_rows()
    assert cut.metrics() == whole.metrics()


def test_without_a_checkpoint_the_run_begins_again_at_step_0(rollouts: Rollouts, tmp_path: Path) -> None:
    job = Job(tmp_path, rollouts)
    job.run()
    before, rows = job.metrics(), job.store_rows()
    job.seen = []
    assert sorted(job.run().evaluations) == [0, 2, 4]
    assert job.metrics() == before and job.store_rows() == rows


def test_the_explorer_ends_with_the_trainer(rollouts: Rollouts, tmp_path: Path) -> None:
    job = Job(tmp_path, rollouts, steps=2)
    summary = job.run()
    # Step 3 runs on version 2, the trainer's last; step 4 would need version 3.
    assert summary.step == 3 and sorted(summary.evaluations) == [0, 2, 3]


def test_total_steps_ends_the_loop_and_startup_evaluation_can_be_off(rollouts: Rollouts, tmp_path: Path) -> None:
    job = Job(tmp_path, rollouts, sections={"explorer": {"eval_on_startup": False, "eval_interval": None}})
    job.sections["buffer"] = {"total_steps": 1}
    summary = job.run()
    assert summary.step == 1 and list(summary.evaluations) == [1]


def test_tasks_of_which_nothing_came_are_no_step(rollouts: Rollouts, tmp_path: Path) -> None:
    acts = ["ok", "ok", "raise", "nan", "ok", "raise", "ok", "ok"]
    rows = [{"question": "q", "act": act, "reward": 1.0} for act in acts]
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_scripted", train_batch_size=4)
    started = time.monotonic()
    summary = job.run()
    assert [len(batch) for batch in job.seen] == [4, 2, 4] and summary.step == 3
    assert summary.experience_count == 10
    assert time.monotonic() - started < 300  # nobody waited for max_read_timeout
    lines = {line["step"]: line for line in job.metrics() if "rollout/model_version" in line}
    assert [lines[k]["rollout/dropped_group_count"] for k in (1, 2, 3)] == [0, 1, 0]
    assert [lines[k]["rollout/empty_batch_count"] for k in (1, 2, 3)] == [0, 1, 0]
    assert (lines[2]["rollout/failed_run_count"], lines[2]["rollout/rejected_run_count"]) == (2, 0)


@pytest.mark.parametrize("style", ["fixed", "fully_async"])
def test_the_last_tasks_of_which_nothing_came_are_left_out_and_the_run_ends(
    rollouts: Rollouts, tmp_path: Path, style: str, caplog: Any
) -> None:
    rows = [{"question": "q", "act": act, "reward": 1.0} for act in ["ok"] * 4 + ["raise"] * 2]
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_scripted")
    job.sections = {"synchronizer": {"sync_style": style, "max_staleness": None}, "deterministic": False}
    with caplog.at_level(logging.WARNING, logger="trinity.explorer"):
        assert job.run().step == 2
    assert "explore step 3: no rollout was completed, and no tasks are left: it is left out" in caplog.text
    assert [len(batch) for batch in job.seen if batch] == [4, 4]


def test_what_failed_entirely_is_explored_when_the_reward_works_again(rollouts: Rollouts, tmp_path: Path) -> None:
    job = Job(tmp_path, rollouts, workflow="test_scripted", rows=[{"question": "q", "act": "ok"} for _ in range(8)])
    job.sections = {"deterministic": False, "explorer": {"eval_on_startup": False, "eval_interval": None}}
    job.rows = [{"question": "q", "act": "raise"} for _ in range(8)]
    with pytest.raises(WorkflowError, match="E5130|no rollout of 3 batches"):
        job.run()
    with ExperienceStore(f"sqlite:///{tmp_path}/experience.db") as store:
        assert store.finished_step("exps", "explorer", run=store_scope(job.config())["run"]) == 0
    assert not job.seen and not (tmp_path / "metrics.jsonl").exists()
    job.rows = [{"question": "q", "act": "ok"} for _ in range(8)]
    summary = job.run()
    assert summary.step == 4 and summary.experience_count == 16
    assert sorted({e.info["task_index"]["index"] for batch in job.seen for e in batch}) == list(range(8))


def test_a_start_up_evaluation_that_failed_entirely_ends_the_run(rollouts: Rollouts, tmp_path: Path) -> None:
    rows = [{"question": "q", "act": "raise"} for _ in range(2)] + [{"question": "q", "act": "ok"} for _ in range(6)]
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_scripted")
    with pytest.raises(WorkflowError, match=r"taskset 'held_out' was completed; .*scripted.py:\d+.*") as found:
        job.run()
    assert found.value.code == "E5131" and not job.seen


def test_a_later_evaluation_that_failed_entirely_is_told(rollouts: Rollouts, tmp_path: Path, caplog: Any) -> None:
    rows = [{"question": "q", "act": act} for act in ["raise", "raise", "ok", "ok"]]
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_scripted")
    job.sections["explorer"] = {"eval_on_startup": False, "eval_interval": 1}
    with caplog.at_level(logging.WARNING, logger="trinity.explorer"):
        assert job.run().step == 1
    assert "no rollout of the taskset 'held_out' was completed" in caplog.text


def test_three_batches_without_a_completed_run_are_an_error(rollouts: Rollouts, tmp_path: Path) -> None:
    rows = [{"question": "q", "act": "raise"} for _ in range(8)]
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_scripted")
    job.sections["explorer"] = {"eval_on_startup": False}
    with pytest.raises(WorkflowError, match=r"no rollout of 3 batches of tasks .*scripted.py:\d+"):
        job.run()
    with ExperienceStore(f"sqlite:///{tmp_path}/experience.db") as store:
        assert store.producers_open("exps", **store_scope(job.config())) == 1  # a failure is no normal end


def test_weights_that_do_not_come_are_an_error_with_the_setting(rollouts: Rollouts, tmp_path: Path) -> None:
    job = Job(tmp_path, rollouts, train_batch_size=8, sections={"explorer": {"eval_interval": None}})

    async def never(*_: Any) -> None:
        await asyncio.sleep(60)

    job._train = never  # type: ignore[method-assign]
    job.sections["synchronizer"] = {"sync_timeout": 0.3}
    with pytest.raises(SyncError, match=r"0.3 s waiting for version 1 .* raise synchronizer.sync_timeout"):
        job.run()


@pytest.mark.difference("A batch with tasks that are late")
def test_a_hung_workflow_loses_its_runs_only(rollouts: Rollouts, tmp_path: Path) -> None:
    rows = [{"question": "q", "act": "ok"}, {"question": "q", "act": "hang"}] * 2
    sections = {"explorer": {"max_timeout": 1.5, "eval_on_startup": False, "eval_interval": None}}
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_scripted", sections=sections, train_batch_size=2)
    job.run()
    assert [[e.eid.uid for e in batch] for batch in job.seen] == [["1/0/0/0/", "1/0/1/0/"], ["2/0/0/0/", "2/0/1/0/"]]
    counted = ("rollout/timeout_run_count", "rollout/abandoned_thread_count")
    lines = [line for line in job.metrics() if counted[0] in line]
    assert [[line[name] for name in counted] for line in lines] == [[2, 2], [2, 2]]


def test_rows_that_cannot_be_used_are_listed_and_said(rollouts: Rollouts, tmp_path: Path, caplog: Any) -> None:
    rows = [{"question": f"q{i}", "act": "ok"} for i in range(60)] + [{"question": None, "act": "ok"}]
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_scripted", train_batch_size=4)
    job.sections["buffer"] = {"total_steps": 1}
    with caplog.at_level(logging.WARNING, logger="trinity.explorer"):
        job.run()
    assert "taskset 'train': 1 of 61 rows cannot be used" in caplog.text
    listed = (tmp_path / "buffer" / "quarantine" / "train.jsonl").read_text()
    assert "train.jsonl" in listed and "question" in listed


def test_other_rows_of_an_evaluation_are_said_on_resume(rollouts: Rollouts, tmp_path: Path, caplog: Any) -> None:
    job = Job(tmp_path, rollouts)
    job.run()
    assert "W4042" not in caplog.text
    job.held_out = [*job.rows[:1], {"question": "2+2="}]
    job.run_again(2)
    assert "[W4042] the rows of the evaluation tasksets held_out changed since explore step 3" in caplog.text


def test_a_damaged_snapshot_is_refused(rollouts: Rollouts, tmp_path: Path) -> None:
    (tmp_path / "explorer.json").write_text('{"explore_step": 3}')
    with pytest.raises(CheckpointError, match="no snapshot of an explorer of this version"):
        Job(tmp_path / "job", rollouts).run(resume=tmp_path)


@pytest.fixture(autouse=True)
def _counts() -> None:
    scripted.ATTEMPTS.clear()
