"""Tasks that begin one by one in a whole explorer: order, bound, evaluation, failures and resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.explorer import scripted
from tests.explorer.jobs import Job
from tests.explorer.rollouts import Rollouts
from trinity.common.errors import WorkflowError
from trinity.explorer.admission import is_streamed
from trinity.utils import failpoints

QUIET = {"eval_on_startup": False, "eval_interval": None}


def streamed(folder: Path, rollouts: Rollouts, rows: list[dict[str, Any]], *, limit: int = 1, **explorer: Any) -> Job:
    """Return a job whose tasks begin one by one: two tasks a step, two runs a task."""
    rows = [{"question": "q", "act": "ok", "name": f"t{number}"} | row for number, row in enumerate(rows)]
    job = Job(folder, rollouts, rows=rows, workflow="test_asynchronous", train_batch_size=4)
    job.sections = {
        "buffer": {"train_batch_size": job.train_batch_size},
        "deterministic": False,
        "synchronizer": {"sync_style": "fully_async", "max_staleness": limit, "update_in_flight": True},
        "explorer": QUIET | explorer,
    }
    assert is_streamed(job.config())
    return job


def names(job: Job) -> list[list[str]]:
    """Return the tasks of each training step, as the first two parts of their ids."""
    return [sorted({e.eid.uid.rsplit("/", 3)[0] for e in batch}) for batch in job.seen]


@pytest.mark.difference("An explore step of `fully_async` with `update_in_flight`")
def test_later_tasks_overtake_a_slow_one_and_none_is_lost(rollouts: Rollouts, tmp_path: Path) -> None:
    job = streamed(tmp_path, rollouts, [{"delay": 1.0}] + [{}] * 7)
    summary = job.run()
    assert summary.step == 4 and summary.experience_count == 16
    assert "1/0" not in [name for step in names(job)[:2] for name in step], "later tasks did not wait for it"
    assert Counter(name for step in names(job) for name in step) == Counter(
        f"{number}/{place}" for number in range(1, 5) for place in range(2)
    )
    lines = [line for line in job.metrics() if "rollout/model_version" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["rollout/finished_task_count"] for line in lines] == [2] * 4


@pytest.mark.parametrize("limit", [0, 2])
def test_no_more_tasks_begin_than_the_bound_lets(
    rollouts: Rollouts, tmp_path: Path, limit: int, monkeypatch: Any
) -> None:
    """At every begin, what has begun fits into the steps until `limit` after the served version."""
    begun, excess = 0, []
    job = streamed(tmp_path, rollouts, [{"delay": 0.02 * (number % 3)} for number in range(16)], limit=limit)
    attempt = scripted.Asynchronous.run_async

    async def counted(self: Any) -> Any:
        nonlocal begun
        if self.task.is_eval:
            return await attempt(self)
        begun += 1
        excess.append(begun - (self.model.model_version + limit + 1) * job.train_batch_size)
        return await attempt(self)

    monkeypatch.setattr(scripted.Asynchronous, "run_async", counted)
    job.run()
    assert begun == 32 and max(excess) <= 0
    ages = [step - exp.info["model_version"] for step, batch in enumerate(job.seen) for exp in batch]
    assert sum(ages) / len(ages) <= limit
    if limit:
        assert max(excess) > -job.train_batch_size, "what the bound lets begin does"
    else:
        assert set(ages) == {0}


def test_an_evaluation_waits_for_the_tasks_before_it_and_none_after_it_begins(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    rows = [{"delay": 0.3 * (number == 1)} for number in range(8)]
    job = streamed(tmp_path, rollouts, rows, limit=3, eval_on_startup=True, eval_interval=2)
    assert sorted(job.run().evaluations) == [0, 2, 4]
    lines = [(line["step"], "eval/model_version" in line) for line in job.metrics()]
    assert lines == [(0, True), (1, False), (2, False), (2, True), (3, False), (4, False), (4, True)]
    assert {name.split("/")[0] for step in names(job)[:2] for name in step} == {"1", "2"}


def test_tasks_that_fail_leave_room_for_others_and_steps_of_which_nothing_came_are_none(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    acts = ["ok", "raise", "raise", "raise", "ok", "ok", "ok", "ok"]
    rows = [{"act": act} for act in acts]
    job = streamed(tmp_path, rollouts, rows, limit=0, runner_per_model=1)
    summary = job.run()
    assert summary.step == 3 and summary.experience_count == 10
    lines = [line for line in job.metrics() if "rollout/model_version" in line]
    assert [line["rollout/empty_batch_count"] for line in lines] == [0, 1, 0]
    assert [line["rollout/dropped_group_count"] for line in lines] == [1, 0, 0]


def test_three_steps_of_tasks_without_a_completed_run_are_an_error(rollouts: Rollouts, tmp_path: Path) -> None:
    job = streamed(tmp_path, rollouts, [{"act": "raise"}] * 8)
    with pytest.raises(WorkflowError, match="no rollout of 3 batches") as found:
        job.run()
    assert found.value.code == "E5130" and not job.seen


def test_the_explorer_ends_with_the_trainer_whatever_is_under_way(rollouts: Rollouts, tmp_path: Path) -> None:
    job = streamed(tmp_path, rollouts, [{"delay": 0.05 * (number % 4)} for number in range(24)])
    job.steps = 2
    summary = job.run()
    assert len(job.seen) == 2 and 2 <= summary.step <= 4
    assert summary.experience_count == 4 * summary.step


@pytest.mark.parametrize("place", ["store.append.before_commit", "store.append.after_commit", "explore.after_rollout"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_was_under_way_at_an_interruption_is_attempted_again_under_its_ids(
    rollouts: Rollouts, tmp_path: Path, place: str, count: int
) -> None:
    rows = [{"delay": 0.4 if number in (0, 3) else 0.01 * (number % 2)} for number in range(10)]
    job = streamed(tmp_path, rollouts, rows, limit=2)
    failpoints.configure(f"{place}=raise@{count}")
    try:
        with pytest.raises(RuntimeError, match=place):
            job.run()
    finally:
        failpoints.configure("")
    trained = len(job.seen)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    state = job.snapshots[-1] | {"model_version": trained} if trained else None
    if state is not None:
        (checkpoint / "explorer.json").write_text(json.dumps(state))
    summary = job.run(resume=checkpoint if trained else None)
    assert summary.step == 5
    seen = [e.eid.uid for batch in job.seen for e in batch]
    assert len(seen) == len(set(seen)) == 20
    assert {e.info["task_index"]["index"] for batch in job.seen for e in batch} == set(range(10))
    rows_of = {(e.eid.uid.rsplit("/", 3)[0], e.info["task_index"]["index"]) for batch in job.seen for e in batch}
    assert rows_of == {(f"{1 + number // 2}/{number % 2}", number) for number in range(10)}


@pytest.mark.timeout(60)
def test_tasks_that_were_read_for_larger_steps_are_in_steps_of_the_new_size(rollouts: Rollouts, tmp_path: Path) -> None:
    """The bound of the smaller steps lets fewer tasks begin than were read for one step."""
    job = streamed(tmp_path, rollouts, [{"delay": 0.02}] * 12, limit=1)
    job.sections["buffer"], job.train_batch_size = {"batch_size": 4, "train_batch_size": 8}, 8
    failpoints.configure("explore.after_rollout=raise@2")
    try:
        with pytest.raises(RuntimeError, match="explore.after_rollout"):
            job.run()
    finally:
        failpoints.configure("")
    trained = len(job.seen)
    state = job.snapshots[-1] | {"model_version": trained}
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "explorer.json").write_text(json.dumps(state))
    job.sections["buffer"], job.train_batch_size = {"batch_size": 1, "train_batch_size": 2}, 2
    job.sections["explorer"] = QUIET | {"max_inflight_batches": 1}
    job.run(resume=checkpoint)
    assert Counter(e.info["task_index"]["index"] for batch in job.seen for e in batch) == Counter(list(range(12)) * 2)
