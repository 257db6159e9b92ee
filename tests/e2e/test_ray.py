"""A run on a real Ray cluster: the same bits as in one process, and what becomes of it when a process dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import REWARD
from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.runtime.test_contract import gone_soon, is_there

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 8
WAIT_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

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
    return steps(folder, cluster__runtime="ray", cluster__ray_address=cluster.address, **keys)


class Watched:
    """A run under way: its lines, and the processes of its actors by name."""

    def __init__(self, run: TinyRun, *extra: str, failpoints: str = "") -> None:
        self.run = run
        self.process = run.start(*extra, failpoints=failpoints)
        self.output = ""

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


def test_a_run_on_ray_gives_the_bits_of_one_process_over_a_stop(tmp_path: Path, cluster: Any, whole: TinyRun) -> None:
    keys = {"log__group_by_node": True, "monitor__enable_ray_timeline": True}
    run = on_ray(tmp_path, cluster, **keys)
    first = Watched(run)
    first.until("checkpoint of step 2")
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == 143, first.output
    assert "resume with: trinity run" in first.output and "\x1b[" not in first.output
    assert f"joined the Ray cluster at {cluster.address}" in first.output
    pids = [first.pid(name) for name in ("explorer", "trainer", "synchronizer", "explorer_rollout_model_0")]
    assert all(gone_soon(pid) for pid in pids)
    second = Watched(run)
    assert second.end() == 0, second.output
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(whole.job)
    (node,) = (folder for folder in (run.job / "log").iterdir() if folder.is_dir())
    logs = {file.stem for file in node.iterdir()}
    assert logs >= {"explorer", "trainer", "synchronizer", "explorer_rollout_model_0"}
    assert "checkpoint of step 8" in (node / "trainer.log").read_text()
    assert len(json.loads((run.job / "monitor" / "timeline.json").read_text())) > 0


VICTIMS = {"explorer": "trainer", "trainer": "explorer", "synchronizer": "synchronizer"}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_side_that_is_killed_ends_the_run_with_its_cause_and_the_run_goes_on(
    tmp_path: Path, cluster: Any, whole: TinyRun, victim: str
) -> None:
    run = on_ray(tmp_path, cluster)
    first = Watched(run)
    first.until("checkpoint of step 2")
    pids = [first.pid(name) for name in ("explorer", "trainer", "synchronizer", "explorer_rollout_model_0")]
    os.kill(first.pid(victim), signal.SIGKILL)
    assert first.end() == 5, first.output
    errors = [line for line in first.output.splitlines() if line.startswith("error[")]
    assert re.match(rf"error\[E5701\]: {victim} \(process {first.pid(victim)} on \S+\) is gone: its process", errors[0])
    assert first.output.splitlines()[-1].startswith("resume with: trinity run")
    assert all(gone_soon(pid) for pid in pids)
    second = Watched(run)
    assert second.end() == 0, second.output
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(whole.job)


def test_an_engine_and_a_runner_that_are_killed_are_replaced(tmp_path: Path, cluster: Any, whole: TinyRun) -> None:
    keys = {"explorer__runner_isolation": "process", "explorer__max_retry_times": 1}
    run = on_ray(tmp_path, cluster, **keys)
    watched = Watched(run)
    watched.until("checkpoint of step 1")
    engine, runner = watched.pid("explorer_rollout_model_0"), watched.pid("explorer_runner_0")
    os.kill(engine, signal.SIGKILL)
    os.kill(runner, signal.SIGKILL)
    assert watched.end() == 0, watched.output
    assert watched.pid("explorer_rollout_model_0") != engine
    assert (
        sum(
            line["rollout/dropped_task_count"] for line in run.lines("explorer") if "rollout/dropped_task_count" in line
        )
        == 0
    )
    assert not is_there(watched.pid("explorer_rollout_model_0"))


def test_nothing_is_left_of_a_driver_that_is_killed(tmp_path: Path, whole: TinyRun) -> None:
    run = steps(tmp_path, cluster__runtime="ray", cluster__ray_address="local")
    first = Watched(run)
    first.until("checkpoint of step 1")
    pids = [first.pid(name) for name in ("explorer", "trainer", "synchronizer", "explorer_rollout_model_0")]
    cluster = children(first.process.pid)
    assert len(cluster) > 1
    first.process.kill()
    assert first.end() == -signal.SIGKILL
    assert all(gone_soon(pid, 30) for pid in (*pids, *cluster))


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True)
    return [int(word) for word in listed.stdout.split()]
