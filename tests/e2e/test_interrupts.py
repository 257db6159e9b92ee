"""Ctrl-C while a run starts, explores, stores, publishes and saves: it ends in order, and no bit differs afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import STEPS, finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import ExitCode
from trinity.launch.run import RunOptions, RunResult, plan_run, run_plan
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

POINTS = (
    "explore.after_rollout=interrupt@2",
    "store.append.before_commit=interrupt@2",
    "store.commit_step.before_commit=interrupt@2",
    "sync.before_publish=interrupt@2",
    "ckpt.before_manifest=interrupt@1",
    "ckpt.before_rename=interrupt@2",
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """A finished run."""
    run = make(tmp_path_factory.mktemp("plain"))
    finish(run, plugins)
    return run


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.configure("")


def make(folder: Path) -> TinyRun:
    """Return a run whose weights go through files."""
    return make_run(folder, {"algorithm_type": "grpo"}).change(synchronizer__sync_method="checkpoint")


def interrupted(run: TinyRun, plugins: Path, **listeners: Any) -> RunResult:
    """Run in this process, whose main thread has the handlers of the run, until it ends."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(plugin_dirs=(plugins,), **listeners)
    return run_plan(plan_run(run.folder / "run.yaml", options), options)


@pytest.mark.parametrize("point", POINTS)
def test_ctrl_c_at_any_point_ends_the_run_in_order(tmp_path: Path, plugins: Path, plain: TinyRun, point: str) -> None:
    run = make(tmp_path)
    failpoints.configure(point)
    started = time.monotonic()
    result = interrupted(run, plugins)
    assert result.exit_code == ExitCode.INTERRUPTED and result.stages[-1].stopped == ExitCode.INTERRUPTED
    assert time.monotonic() - started < 60
    assert result.stages[-1].training_step < STEPS, "it did not continue to its end"
    failpoints.configure("")
    finish(run, plugins)
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(plain.job)
    assert not list(run.job.glob(".*.tmp")), "nothing half-written is left"


def test_ctrl_c_while_it_starts_ends_before_the_first_step(tmp_path: Path, plugins: Path, plain: TinyRun) -> None:
    run = make(tmp_path)
    result = interrupted(run, plugins, on_stage=lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert result.exit_code == ExitCode.INTERRUPTED and result.stages[-1].training_step == 0
    finish(run, plugins)
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(plain.job)
