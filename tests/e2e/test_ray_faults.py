"""Faults of a run on Ray: a runner, a training rank, the head of the cluster; and the parts of a run there."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.parts import Parts
from tests.e2e.ray_run import SIDES, STEPS, WAIT_S, Watched, on_ray, steps
from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.runtime.test_contract import gone_soon
from trinity.common.errors import ExitCode

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


# Some seconds a step: the processes go on for a while without the head.
SLOWLY = ";".join(
    f"{place}=sleep"
    for place in ("train.before_step", "train.after_step", "explore.after_rollout", "store.append.before_commit")
)


def test_a_runner_killed_on_ray_is_replaced_and_engines_there_take_a_broadcast(
    tmp_path: Path, cluster: Any, whole: TinyRun
) -> None:
    last = 3
    run = on_ray(tmp_path, cluster, explorer__rollout_model__engine_num=2, synchronizer__sync_method="nccl")
    run.change(explorer__runner_isolation="process", explorer__runner_per_model=1, explorer__max_retry_times=2)
    run.change(buffer__total_steps=last)
    with Watched(run, failpoints="train.before_step=sleep") as watched:
        watched.until("checkpoint of step 1:")
        victim = watched.pid("explorer_runners_0")
        os.kill(victim, signal.SIGKILL)
        assert watched.end() == 0, watched.output
    assert watched.pid("explorer_runners_2") != victim, "the third process, after one of each runner"
    assert sum(line.get("rollout/runner_restart_count", 0) for line in run.lines("explorer")) == 1
    assert final_weights(run, last) == final_weights(whole, last)
    assert min(line["perf/sync_gb_per_second"] for line in run.lines("explorer") if line["step"] > 1) > 0


def test_a_run_whose_cluster_loses_its_head_ends_and_can_be_resumed(
    tmp_path: Path, plugins: Path, whole: TinyRun
) -> None:
    """The run's own cluster, whose gcs_server is killed: nothing of it is there after half a minute."""
    run = steps(tmp_path, cluster__runtime="ray", cluster__ray_address="local", explorer__runner_isolation="thread")
    with Watched(run, failpoints=SLOWLY) as watched:
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
    assert resume.startswith("resume with: ") and " trinity run --config run.yaml" in resume
    assert failed.startswith("failed with exit code 5: [E5706] the head of the Ray cluster at ") and "GONE_S" in failed
    reached = max(line["step"] for line in run.lines("trainer"))
    assert 1 <= reached < STEPS
    finish(run.change(cluster__runtime="local", cluster__ray_address="auto"), plugins, steps=STEPS)
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(whole.job)


def test_parts_on_ray_explore_train_and_evaluate_and_a_rank_that_dies_costs_nothing(
    tmp_path: Path, cluster: Any, plugins: Path
) -> None:
    parts = Parts(tmp_path / "run", plugins)
    explorer, trainer = parts.trees["explorer"], parts.trees["trainer"]
    explorer["buffer"]["total_steps"] = 2
    inputs = explorer["buffer"]["explorer_input"]
    inputs["eval_tasksets"] = [inputs["taskset"] | {"name": "test"}]
    keys = ("project", "name", "checkpoint_root_dir", "algorithm", "model", "buffer")
    parts.trees["bench"] = {key: explorer[key] for key in keys} | {"mode": "bench"}
    for tree in parts.trees.values():
        tree["cluster"] = {"runtime": "ray", "ray_address": cluster.address}
    explorer["explorer"]["runner_isolation"] = "thread"
    parts.trees["bench"]["explorer"] = {"runner_isolation": "thread"}
    trainer["trainer"] |= {"num_workers": 2, "save_interval": 1}

    assert ended_on_ray(parts, "explorer", "explorer_rollout_model_0") == ExitCode.DONE
    process = parts.start("trainer", failpoints="train.before_step=sleep")
    pids = pids_at(parts, "checkpoint of step 1:")
    os.kill(pids["trainer_rank_1"], signal.SIGKILL)
    assert process.wait(timeout=120) == ExitCode.RUNTIME, parts.output("trainer")
    failed = parts.output("trainer").splitlines()[-1]
    rank = f"trainer_rank_1 (process {pids['trainer_rank_1']} on "
    assert failed.startswith(f"failed with exit code 5: [E5701] {rank}"), parts.output("trainer")
    assert set(pids) == {"trainer", "trainer_rank_0", "trainer_rank_1"} and all(map(gone_soon, pids.values()))
    trainer["trainer"]["num_workers"] = 1
    assert ended_on_ray(parts, "trainer", "trainer", accept=("trainer.num_workers",)) == ExitCode.DONE
    assert parts.query("select state, use_count, count(*) from experience group by 1, 2") == [("trained", 1, 8)]
    assert parts.query("select count(*), count(distinct uid) from step_exp") == [(8, 8)]
    assert [line["step"] for line in parts.lines("trainer")] == [1, 2]
    assert ended_on_ray(parts, "bench", "explorer_rollout_model_0") == ExitCode.DONE
    assert {line["bench/model_version"] for line in parts.lines("bench")} == {0, 1, 2}


def ended_on_ray(parts: Parts, name: str, actor: str, *, accept: tuple[str, ...] = ()) -> ExitCode:
    """Run a part in this process; what trains or samples for it must be an actor, which writes its own log."""
    log = parts.job / "log" / f"{actor}.log"
    log.unlink(missing_ok=True)
    code = parts.run(name, accept=accept).exit_code
    assert log.is_file()
    return code


def pids_at(parts: Parts, pattern: str) -> dict[str, int]:
    """Return the processes of the trainer's actors by name, once one of them has logged `pattern`."""
    end = time.monotonic() + WAIT_S
    while pattern not in (logged := "".join(log.read_text() for log in (parts.job / "log").rglob("*.log"))):
        assert time.monotonic() < end, parts.output("trainer")
        time.sleep(0.05)
    return {name: int(pid) for name, pid in re.findall(r" (trainer\w*) is process (\d+)", logged)}
