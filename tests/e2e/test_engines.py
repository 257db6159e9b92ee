"""Other ways to make the rollouts, and the end of an engine, change no bit of what is learnt."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import STEPS, finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import EnginesLostError, ExitCode
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """A finished run of one engine."""
    run = make_run(tmp_path_factory.mktemp("plain"), {"algorithm_type": "grpo"})
    finish(run, plugins)
    return run


def test_groups_that_are_split_among_runners_are_whole_for_the_advantage(
    tmp_path: Path, plugins: Path, plain: TinyRun
) -> None:
    run = make_run(tmp_path, {"algorithm_type": "grpo"}).change(explorer__max_repeat_times_per_runner=1)
    finish(run, plugins)
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(plain.job)


def engine_processes() -> list[int]:
    """Return the children of this process."""
    return [child.pid for child in psutil.Process().children()]


def run_and_kill(run: TinyRun, plugins: Path, *, break_model: bool = False) -> None:
    """Run in this process; after the first explore step, kill one engine, or all of them and what they start from."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))

    def kill(actor: str, step: int, _: Mapping[str, float]) -> None:
        if actor != "explorer" or step != 1:
            return
        if break_model:
            (run.folder / "model" / "config.json").unlink()
        for pid in engine_processes()[: None if break_model else 1]:
            os.kill(pid, signal.SIGKILL)

    options = RunOptions(plugin_dirs=(plugins,), on_metrics=kill)
    run_plan(plan_run(run.folder / "run.yaml", options), options)


def test_a_run_whose_engine_is_killed_goes_on_and_learns_the_same(
    tmp_path: Path, plugins: Path, plain: TinyRun
) -> None:
    run = make_run(tmp_path, {"algorithm_type": "grpo"}).change(explorer__rollout_model__engine_num=2)
    before = set(engine_processes())
    run_and_kill(run, plugins)
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(plain.job)
    last = run.lines("explorer")[-1]
    assert last["perf/engine/engines_serving"] == 2 and last["perf/engine/engine_restarts"] == 1
    assert min(last[f"perf/engine/{index}/answered_requests"] for index in range(2)) > 0
    assert set(engine_processes()) <= before


def test_a_run_ends_when_no_engine_comes_back(tmp_path: Path, plugins: Path) -> None:
    run = make_run(tmp_path, {"algorithm_type": "grpo"})
    changes: dict[str, Any] = {"explorer__rollout_model__engine_num": 2, "explorer__engine_recovery_timeout": 2}
    run.change(**changes, deterministic=False, explorer__max_timeout=60)
    with pytest.raises(EnginesLostError, match="no inference engine has served for 2 s") as failure:
        run_and_kill(run, plugins, break_model=True)
    assert failure.value.exit_code == ExitCode.RUNTIME and failure.value.code == "E5630"
    assert not engine_processes()
