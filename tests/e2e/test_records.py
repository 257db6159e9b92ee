"""What a run leaves on record, whatever its end; and a start that failed, which binds the next one to nothing."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.e2e.parts import Parts
from tests.e2e.ray_run import Watched
from tests.e2e.test_own_ray import trains
from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import CheckpointError, DataError, EnvironmentProblem, ExitCode
from trinity.launch.job import config_file, record_file
from trinity.launch.run import RunOptions, RunResult, plan_run, run_plan
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

END = {"status", "exit_code", "error", "seconds"}


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.configure("")


def trained(folder: Path) -> TinyRun:
    """Return a run of two steps on a dataset, in one process."""
    run = trains(folder).change(cluster__runtime="local", model__model_path=str(folder / "model"))
    run.tree["buffer"]["trainer_input"]["experience_buffer"]["path"] = str(folder / "train.jsonl")
    return run.change(checkpoint_root_dir=str(folder / "out"))


def ended(run: TinyRun, *overrides: str) -> RunResult:
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(overrides=overrides)
    return run_plan(plan_run(run.folder / "run.yaml", options), options)


def record(job: Path, component: str | None = None) -> dict[str, Any]:
    return json.loads(record_file(job, component).read_text())


def test_the_record_says_how_a_run_ended(tmp_path: Path) -> None:
    run = trained(tmp_path)
    failpoints.configure("train.before_step=raise@2")
    with pytest.raises(RuntimeError, match="train.before_step"):
        ended(run)
    assert record(run.job)["status"] == "failed" and record(run.job)["facts"]["threads"] > 0
    with pytest.raises(CheckpointError, match=r"E7004.*\n.*seed"):
        ended(run, "seed=7")
    assert record(run.job)["status"] == "failed", "a command that was refused is no run"
    failpoints.configure("train.before_step=interrupt@1")
    assert ended(run).exit_code == ExitCode.INTERRUPTED
    assert record(run.job)["status"] == "stopped"
    failpoints.configure("")
    assert ended(run).exit_code == ExitCode.DONE
    assert (record(run.job)["status"], record(run.job)["training_step"]) == ("done", 2)


def test_a_run_that_is_left_at_once_is_recorded_as_stopped(tmp_path: Path) -> None:
    with Watched(trained(tmp_path), failpoints="train.before_step=stop@2") as watched:
        process = psutil.Process(watched.process.pid)
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.05)
        assert record(tmp_path / "out" / "tiny" / "run")["status"] == "running"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            watched.process.send_signal(number)
        assert watched.end() in (130, 143), watched.output
    assert record(tmp_path / "out" / "tiny" / "run")["status"] == "stopped"


@pytest.mark.parametrize("component", ["explorer", None], ids=["a part", "the whole"])
def test_a_start_that_failed_binds_the_next_one_to_nothing(
    component: str | None, tmp_path: Path, plugins: Path
) -> None:
    """It failed before there was a cluster, or while its parts were prepared; the next one means something else."""
    parts = Parts(tmp_path / "run", plugins)
    shape = () if component else ("mode=both", "trainer.save_interval=1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(EnvironmentProblem, match="E3409"):
        parts.run("explorer", *shape, "cluster.runtime=ray", f"cluster.ray_address={nobody}", "seed=1")
    assert not config_file(parts.job, component).exists() and set(record(parts.job, component)) == END
    no_rows = f"buffer.explorer_input.taskset.path={tmp_path / 'nothing.jsonl'}"
    with pytest.raises(DataError):
        parts.run("explorer", *shape, no_rows, "seed=2")
    assert set(record(parts.job, component)) == END and record(parts.job, component)["status"] == "failed"
    few = ("buffer.total_steps=2", "seed=3")
    assert parts.run("explorer", *shape, *few).exit_code == ExitCode.DONE
    kept = config_file(parts.job, component).read_text()
    with pytest.raises(EnvironmentProblem, match="E3409"):
        more = ("buffer.total_steps=4", "seed=4", "cluster.runtime=ray", f"cluster.ray_address={nobody}")
        derived = ("explorer.runner_isolation", "trainer.trainer_config.actor_rollout_ref.actor.data_loader_seed")
        parts.run("explorer", *shape, *more, accept=("seed", *derived))
    assert config_file(parts.job, component).read_text() == kept, "what was learned was learned with these values"


def test_a_checkpoint_says_where_the_explorer_stands_whatever_its_name(tmp_path: Path) -> None:
    run = TinyRun(tmp_path).change(explorer__name="walker", deterministic=True)
    end = run.finish()
    assert end.status == 0, end.output
    places = [json.loads(file.read_text()) for file in sorted(run.job.glob("global_step_*/explorer.json"))]
    assert [place["explore_step"] for place in places] == [1, 2]
