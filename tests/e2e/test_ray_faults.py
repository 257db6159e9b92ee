"""Faults of a run on Ray: a runner, a training rank, the head of the cluster; and the parts of a run there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.parts import Parts
from tests.e2e.ray_run import SIDES, STEPS, Watched, on_ray, own_cluster, steps
from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.runtime.test_contract import gone_soon
from trinity.common.errors import ExitCode

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    yield from own_cluster()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """The run in one process, to its end."""
    run = steps(tmp_path_factory.mktemp("whole"))
    finish(run, plugins, steps=STEPS)
    return run


def test_a_runner_killed_on_ray_is_replaced_and_engines_there_take_a_broadcast(
    tmp_path: Path, cluster: Any, whole: TinyRun
) -> None:
    last = 4
    run = on_ray(tmp_path, cluster, explorer__rollout_model__engine_num=2, synchronizer__sync_method="nccl")
    run.change(explorer__runner_isolation="process", explorer__runner_per_model=1, explorer__max_retry_times=2)
    run.change(buffer__total_steps=last)
    with Watched(run, failpoints="train.before_step=sleep") as watched:
        watched.until("checkpoint of step 1:")
        victim = watched.pid("explorer_runner_0000")
        os.kill(victim, signal.SIGKILL)
        assert watched.end() == 0, watched.output
    assert watched.pid("explorer_runner_0000") != victim and "E8010" not in watched.output
    assert sum(line.get("rollout/runner_restart_count", 0) for line in run.lines("explorer")) == 1
    assert final_weights(run, last) == final_weights(whole, last)
    assert min(line["perf/sync_gb_per_second"] for line in run.lines("explorer") if line["step"] > 1) > 0


def test_a_rank_killed_on_ray_ends_the_run_with_its_name_and_all_processes(tmp_path: Path, cluster: Any) -> None:
    run = on_ray(tmp_path, cluster, trainer__num_workers=2)
    ranks = ("trainer_rank_0", "trainer_rank_1")
    with Watched(run) as watched:
        watched.until("checkpoint of step 1:")
        os.kill(watched.pid(ranks[1]), signal.SIGKILL)
        assert watched.end() == 5, watched.output
    (error,) = (line for line in watched.output.splitlines() if line.startswith("error["))
    assert error.startswith(f"error[E5701]: {ranks[1]} (process {watched.pid(ranks[1])} on ")
    assert all(gone_soon(watched.pid(name)) for name in (*SIDES, *ranks))


def test_a_run_whose_cluster_loses_its_head_ends_and_can_be_resumed(
    tmp_path: Path, plugins: Path, whole: TinyRun
) -> None:
    """The run's own cluster, whose gcs_server is killed: nothing of it is there after half a minute."""
    run = steps(tmp_path, cluster__runtime="ray", cluster__ray_address="local", explorer__runner_isolation="thread")
    with Watched(run, failpoints="train.before_step=sleep;explore.after_rollout=sleep") as watched:
        watched.until("checkpoint of step 1:")
        processes = psutil.Process(watched.process.pid).children(recursive=True)
        (head,) = (process for process in processes if process.name() == "gcs_server")
        assert {watched.pid(name) for name in SIDES} < {process.pid for process in processes}
        head.kill()
        killed_at = time.monotonic()
        assert watched.end() == 5, watched.output
    _, alive = psutil.wait_procs(processes, timeout=killed_at + 30 - time.monotonic())
    assert not alive
    resume, failed = watched.output.splitlines()[-2:]
    assert resume.startswith("resume with: trinity run --config run.yaml")
    assert failed.startswith("failed with exit code 5: [E5706] the head of the Ray cluster at ") and "GONE_S" in failed
    reached = max(line["step"] for line in run.lines("trainer"))
    assert 1 <= reached < STEPS
    finish(run.change(cluster__runtime="local", cluster__ray_address="auto"), plugins, steps=STEPS)
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(whole.job)


def test_parts_on_ray_explore_train_and_evaluate(tmp_path: Path, cluster: Any, plugins: Path) -> None:
    parts = Parts(tmp_path / "run", plugins)
    explorer = parts.trees["explorer"]
    explorer["buffer"]["total_steps"] = 2
    inputs = explorer["buffer"]["explorer_input"]
    inputs["eval_tasksets"] = [inputs["taskset"] | {"name": "test"}]
    keys = ("project", "name", "checkpoint_root_dir", "algorithm", "model", "buffer")
    parts.trees["bench"] = {key: explorer[key] for key in keys} | {"mode": "bench"}
    on_cluster = ("cluster.runtime=ray", f"cluster.ray_address={cluster.address}")
    for name in ("explorer", "trainer", "bench"):
        threads = () if name == "trainer" else ("explorer.runner_isolation=thread",)
        log = parts.job / "log" / ("trainer.log" if name == "trainer" else "explorer_rollout_model_0.log")
        log.unlink(missing_ok=True)
        assert parts.run(name, *on_cluster, *threads).exit_code == ExitCode.DONE
        assert log.is_file(), "the process that trains or samples is an actor, and writes its own log"
    assert parts.query("select state, use_count, count(*) from experience group by 1, 2") == [("trained", 1, 8)]
    assert [line["step"] for line in parts.lines("trainer")] == [1, 2]
    assert {line["bench/model_version"] for line in parts.lines("bench")} == {0, 2}
