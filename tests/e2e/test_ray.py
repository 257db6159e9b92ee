"""A run on a real Ray cluster: the same bits as in one process, and what becomes of it when a process dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import REWARD
from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.runtime.parts import Part
from tests.runtime.test_contract import gone_soon
from trinity.common.errors import EnvironmentProblem

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 9
WAIT_S = 300.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """The run in one process, to its end."""
    run = steps(tmp_path_factory.mktemp("whole"))
    finish(run, plugins, steps=STEPS)
    return run


def steps(folder: Path, **keys: Any) -> TinyRun:
    folder.mkdir(exist_ok=True)
    run = make_run(folder, {"algorithm_type": "grpo"}).change(buffer__total_steps=STEPS, **keys)
    run.plugin = REWARD
    return run


def on_ray(folder: Path, cluster: Any, **keys: Any) -> TinyRun:
    keys |= {"cluster__ray_address": cluster.address, "explorer__runner_isolation": "thread"}
    return steps(folder, cluster__runtime="ray", **keys)


class Watched:
    """A run under way: its lines, and the processes of its actors by name. It ends with the `with` block."""

    def __init__(self, run: TinyRun, *, failpoints: str = "") -> None:
        self.process = run.start(failpoints=failpoints)
        self.output = ""

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.end()

    def until(self, pattern: str) -> str:
        """Read lines until one matches; return it."""
        assert self.process.stdout is not None
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            self.output += line
            if re.search(pattern, line):
                return line
            assert line, f"ended without {pattern!r}:\n{self.output[-4000:]}"
        raise AssertionError(f"no {pattern!r} within {WAIT_S:g} s:\n{self.output[-4000:]}")

    def pid(self, name: str) -> int:
        """Return the newest process of an actor, which the log names when it starts."""
        found = re.findall(rf" {name} is process (\d+)", self.output)
        assert found, f"{name} did not start:\n{self.output}"
        return int(found[-1])

    def end(self) -> int:
        """Read to the end; return the exit status."""
        rest, _ = self.process.communicate(timeout=WAIT_S)
        self.output += rest
        return self.process.returncode


VICTIMS = ("explorer", "trainer", "synchronizer")
SIDES = (*VICTIMS, "explorer_rollout_model_0")


def test_a_run_that_is_stopped_and_killed_on_ray_ends_with_the_bits_of_one_process(
    tmp_path: Path, cluster: Any, whole: TinyRun
) -> None:
    """One job from the first step to the last, interrupted in each way that there is."""
    run = on_ray(tmp_path, cluster, log__group_by_node=True, monitor__enable_ray_timeline=True)
    with Watched(run) as first:
        first.until("checkpoint of step 1:")
        first.process.send_signal(signal.SIGTERM)
        assert first.end() == 143, first.output
    assert "resume with: trinity run" in first.output and "\x1b[" not in first.output
    assert f"joined the Ray cluster at {cluster.address}" in first.output
    assert all(gone_soon(first.pid(name)) for name in SIDES)
    for victim in VICTIMS:
        killed(run, victim)
    driver_killed(run)
    with Watched(run) as last:
        last.until("checkpoint of step")
        engine = last.pid("explorer_rollout_model_0")
        os.kill(engine, signal.SIGKILL)
        assert last.end() == 0, last.output
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(whole.job)
    (node,) = (folder for folder in (run.job / "log").iterdir() if folder.is_dir())
    assert {file.stem for file in node.iterdir()} >= set(SIDES)
    assert f"checkpoint of step {STEPS}:" in (node / "trainer.log").read_text()
    assert len(json.loads((run.job / "monitor" / "timeline.json").read_text())) > 0


def killed(run: TinyRun, victim: str) -> None:
    """Kill a side after one more step: the run ends with code 5, says who died, and leaves no process."""
    with Watched(run) as watched:
        watched.until("checkpoint of step")
        os.kill(watched.pid(victim), signal.SIGKILL)
        assert watched.end() == 5, watched.output
    (error,) = (line for line in watched.output.splitlines() if line.startswith("error["))
    process = f"{victim} (process {watched.pid(victim)} on "
    assert error.startswith(f"error[E5701]: {process}") and "is gone: its process ended without a word" in error
    assert watched.output.splitlines()[-1].startswith("resume with: trinity run")
    assert all(gone_soon(watched.pid(name)) for name in SIDES)


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


def driver_killed(run: TinyRun) -> None:
    """Kill the driver after one more step: all actors end with it."""
    with Watched(run) as watched:
        watched.until("checkpoint of step")
        pids = [watched.pid(name) for name in SIDES]
        watched.process.kill()
        assert watched.end() == -signal.SIGKILL
    assert all(gone_soon(pid, 30) for pid in pids)


def test_a_runner_killed_on_ray_is_replaced_and_engines_there_take_a_broadcast(
    tmp_path: Path, cluster: Any, whole: TinyRun
) -> None:
    run = on_ray(tmp_path, cluster, explorer__rollout_model__engine_num=2, synchronizer__sync_method="nccl")
    run.change(explorer__runner_isolation="process", explorer__max_retry_times=2)
    with Watched(run, failpoints="train.before_step=sleep") as watched:
        watched.until("checkpoint of step 1:")
        victim = watched.pid("explorer_runner_0000")
        os.kill(victim, signal.SIGKILL)
        assert watched.end() == 0, watched.output
    assert watched.pid("explorer_runner_0000") != victim and "E8010" not in watched.output
    assert sum(line.get("rollout/runner_restart_count", 0) for line in run.lines("explorer")) == 1
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert min(line["perf/sync_gb_per_second"] for line in run.lines("explorer") if line["step"] > 1) > 0


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
    error, resume = watched.output.splitlines()[-2:]
    assert error.startswith("error[E5706]: the head of the Ray cluster at ") and "GONE_S" in error
    assert resume.startswith("resume with: trinity run --config run.yaml")
    reached = max(line["step"] for line in run.lines("trainer"))
    assert 1 <= reached < STEPS
    finish(run.change(cluster__runtime="local", cluster__ray_address="auto"), plugins, steps=STEPS)
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(whole.job)


def test_a_machine_that_leaves_the_cluster_is_named(cluster: Any) -> None:
    from trinity.runtime import ray as placement
    from trinity.runtime.base import ActorDiedError, Resources
    from trinity.runtime.cluster import ClusterRequest

    async def main() -> None:
        runtime = placement.RayRuntime("leaving")
        part = await runtime.start(Part, 3, resources=Resources(node=node.node_id))
        waiting = asyncio.ensure_future(part.wait())
        assert await part.add(1) == 4
        cluster.remove_node(node)
        with pytest.raises(ActorDiedError, match=r"E5701.*Part .* is gone: its machine is gone from the cluster"):
            await asyncio.wait_for(waiting, WAIT_S)
        await runtime.close()

    node = cluster.add_node(num_cpus=1)
    with pytest.raises(EnvironmentProblem, match=r"E3401.*has 2 machines"):
        placement.connect(ClusterRequest(cluster.address, "leaving", node_num=3))
    placement.connect(ClusterRequest(cluster.address, "leaving", node_num=2, is_quiet=True))
    try:
        asyncio.run(main())
    finally:
        placement.disconnect()
