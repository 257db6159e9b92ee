"""Steps that are filled again where others are under way, and their fates over interruptions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.explorer import scripted  # noqa: F401  registers the workflows
from tests.explorer.jobs import Job
from tests.explorer.rollouts import Rollouts
from trinity.buffer.store import ExperienceStore
from trinity.buffer.store.types import Fates
from trinity.explorer.admission import is_streamed
from trinity.explorer.assembly import store_scope
from trinity.utils import failpoints

NUM_ROWS = 15
DROPPED = {number for number in range(NUM_ROWS) if number % 3 == 0}
QUIET = {"eval_on_startup": False, "eval_interval": None}
STYLES = {
    "in turn": {"sync_style": "fixed"},
    "overlapping": {"sync_style": "fully_async", "max_staleness": 3},
    "streamed": {"sync_style": "fully_async", "max_staleness": 3, "update_in_flight": True},
}


def job(folder: Path, rollouts: Rollouts, style: str) -> Job:
    """Return a job of two tasks a step and two runs a task; every third task is dropped, and another takes its place.

    The first task of each kind is slow, so that later steps are under way when a step is filled.
    """
    rows = [
        {"question": "q", "act": "ok", "name": f"t{number}", "delay": 0.05 * (number % 4), "reward": 1.0}
        | ({"reward": 0.0} if number in DROPPED else {})
        for number in range(NUM_ROWS)
    ]
    made = Job(folder, rollouts, rows=rows, workflow="test_asynchronous", train_batch_size=4)
    operators = [{"name": "reward_filter", "args": {"threshold": 0.5}}]
    made.sections = {
        "buffer": {"train_batch_size": 4},
        "deterministic": False,
        "synchronizer": STYLES[style],
        "explorer": QUIET | {"runner_per_model": 6},
        "data_processor": {"experience_pipeline": {"operators": operators, "max_refill_batches": 3}},
    }
    assert is_streamed(made.config()) == (style == "streamed")
    return made


def test_tasks_that_were_not_waited_for_are_a_fate_of_their_own(rollouts: Rollouts, tmp_path: Path) -> None:
    rows = [{"question": "q", "act": "ok", "name": f"t{n}", "delay": 2.0 if n % 4 == 3 else 0.0} for n in range(8)]
    made = Job(tmp_path, rollouts, rows=rows, workflow="test_asynchronous")
    made.sections = {
        "deterministic": False,
        "explorer": QUIET | {"runner_per_model": 4, "over_rollout": {"ratio": 0.5, "wait_after_min": 0.0}},
        "synchronizer": {"sync_style": "fixed"},
    }
    made.run()
    found = fates(made)
    assert (found.issued, found.waiting) == (16, 0)
    assert found.ended["failed/unfinished"] >= 4 and found.ended["trained"] == 16 - found.ended["failed/unfinished"]


def fates(made: Job) -> Fates:
    with ExperienceStore(f"sqlite:///{made.folder}/experience.db") as store:
        return store.fates("exps", run=store_scope(made.config())["run"])


@pytest.mark.parametrize(
    ("style", "point"),
    [
        ("in turn", "explore.while_refilling=raise@2"),
        ("overlapping", ""),
        ("overlapping", "explore.while_refilling=raise@1"),
        ("overlapping", "explore.while_refilling=raise@3"),
        ("overlapping", "store.append.after_commit=raise@2"),
        ("streamed", "explore.while_refilling=raise@2"),
        ("streamed", "store.append.after_commit=raise@2"),
    ],
)
def test_no_task_is_lost_or_comes_twice_although_steps_are_filled_again(
    rollouts: Rollouts, tmp_path: Path, style: str, point: str
) -> None:
    made = job(tmp_path, rollouts, style)
    failpoints.configure(point)
    try:
        if point:
            with pytest.raises(RuntimeError, match=point.partition("=")[0]):
                made.run()
    finally:
        failpoints.configure("")
    trained = len(made.seen)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    if trained:
        (checkpoint / "explorer.json").write_text(json.dumps(made.snapshots[-1] | {"model_version": trained}))
    made.run(resume=checkpoint if trained else None)
    seen = Counter(exp.info["task_index"]["index"] for batch in made.seen for exp in batch)
    assert seen == {number: 2 for number in range(NUM_ROWS) if number not in DROPPED}
    assert len({exp.eid.uid for batch in made.seen for exp in batch}) == 2 * len(seen)
    assert [len(batch) for batch in made.seen if batch] == [4] * 5, "every step was filled"
    assert fates(made) == Fates(2 * NUM_ROWS, {"trained": 20, "filtered/reward_filter": 10}, 0)
    counts = [line for line in made.metrics() if "fate/issued" in line]
    assert counts[-1]["fate/issued"] == 2 * NUM_ROWS
    missing = [line["experience_pipeline/refill/missing_count"] for line in counts]
    first = 2 if point else 3  # the line of the step in which it ended may not be there
    assert missing[:first] == [0] * first, "only where no tasks are left is less in a step"
    assert sum(line["experience_pipeline/refill/task_count"] for line in counts) >= first
