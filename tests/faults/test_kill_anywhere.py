"""SIGKILL at any instant, then the same command again: the same weights, the same metrics, bit for bit."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.short_run import ShortRun, wall_seconds


def made(folder: Path) -> ShortRun:
    return ShortRun.make(folder, test_rows=8)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """What the run ends with when nobody disturbs it, and how long it takes in a process as those that are killed."""
    run, again = (made(tmp_path_factory.mktemp(name)) for name in ("undisturbed", "again"))
    status, output = run.finish(is_real=True)
    assert status == 0, output
    seconds = wall_seconds(again)
    assert without_paths(again.outcome()) == without_paths(run.outcome()), "a fork is as an ordinary process"
    return run.outcome(), seconds


def without_paths(outcome: dict[str, Any]) -> dict[str, Any]:
    return {stage: {k: part[k] for k in ("step", "weights", "metrics")} for stage, part in outcome.items()}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("num_kills", [5, pytest.param(20, marks=pytest.mark.nightly)])
def test_kills_at_random_instants_change_no_bit(undisturbed, tmp_path: Path, num_kills: int):
    expected, seconds = undisturbed
    draw = random.Random(20)
    kills, runs, run = 0, 0, None
    while kills < num_kills or run is not None:
        is_whole, run = run is None, run or made(tmp_path / f"run{runs}")
        begun = time.monotonic()
        if kills < num_kills and run.kill_after(draw.uniform(0.0, seconds)):
            kills += 1
            continue
        if is_whole:  # the machine may have less to do beside it than when it was measured
            seconds = min(seconds, time.monotonic() - begun)
        status, output = run.finish()
        assert status == 0, output
        assert without_paths(run.outcome()) == without_paths(expected), f"after {kills} kills in all"
        run, runs = None, runs + 1
    assert kills == num_kills


POINTS = [
    ("ckpt.before_write", 2),
    ("ckpt.after_files", 2),
    ("ckpt.before_manifest", 3),
    ("ckpt.after_manifest", 1),
    ("ckpt.before_rename", 4),
    ("ckpt.after_rename", 2),
    ("ckpt.before_latest", 5),
    ("ckpt.after_latest", 3),
    ("ckpt.retention", 1),
    ("store.append.before_commit", 2),
    ("store.append.after_commit", 3),
    ("store.claim.after_commit", 3),
    ("store.commit_step.before_commit", 4),
    ("store.commit_step.after_commit", 5),
    ("train.before_step", 4),
    ("train.after_step", 7),
    ("explore.after_rollout", 2),
]
IN_EVERY_RUN = {"ckpt.after_files", "ckpt.after_rename", "store.append.after_commit", "train.after_step"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("point", "hit"),
    [pytest.param(p, h, id=f"{p}@{h}", marks=[] if p in IN_EVERY_RUN else [pytest.mark.nightly]) for p, h in POINTS],
)
def test_a_kill_at_a_named_point_changes_no_bit(undisturbed, tmp_path: Path, point: str, hit: int):
    expected, _ = undisturbed
    run = made(tmp_path)
    status, output = run.finish(failpoints=f"{point}=kill@{hit}")
    assert status == -9, f"{point} was not reached {hit} times:\n{output}"
    status, output = run.finish()
    assert status == 0, output
    assert without_paths(run.outcome()) == without_paths(expected)
