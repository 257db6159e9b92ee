"""A run over two machines of a Ray cluster that was started before it: who gets which GPU, what of the environment
reaches the actors, and what happens to the run when a machine leaves. The GPUs are numbers only."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.ray_run import Watched, on_ray, steps
from tests.e2e.ray_worker_server import node_args
from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish
from tests.e2e.test_external_model import KEY, WORKFLOW
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.engine.external.openai_server import serving
from tests.runtime.test_contract import gone_soon
from tests.tiny import tiny_model

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 4
ENGINE = "explorer_rollout_model_0"


class Machines:
    """A cluster of two machines, with one GPU and with three; the second may leave and another one come."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_worker_niceness", "0")
            patch.setenv("CUDA_VISIBLE_DEVICES", "0")
            head = node_args(num_cpus=2, num_gpus=1, include_dashboard=False)
            self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.come()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def come(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_worker_niceness", "0")
            patch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
            self.second = self.cluster.add_node(**node_args(num_cpus=2, num_gpus=3))

    def leave(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    made = Machines()
    yield made
    made.cluster.shutdown()


def placed(logged: str) -> dict[str, tuple[int, str]]:
    """Return process and GPUs of each part; of one that was started again those of its newest process."""
    found = re.findall(r" (\w+) is process (\d+) on \S+?(?: with GPU (\S+))?\n", logged)
    return {name: (int(pid), gpus) for name, pid, gpus in found}


@pytest.mark.nightly
def test_each_part_has_its_gpus_and_the_keys_of_the_run(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TinyRun(tmp_path)
    tiny_model(tmp_path / "other", "llama", seed=2)
    judge = {"model_name": "judge", "base_url_env": "JUDGE_URL", "api_key_env": "KEY_OF_THE_JUDGE"}
    auxiliary = [
        {"engine_type": "external", "external_model_config": judge},
        {"model_path": str(tmp_path / "other"), "dtype": "float32"},
    ]
    run.change(
        cluster={"node_num": 2, "gpu_per_node": 2, "ray_address": machines.address},
        buffer__total_steps=1,
        buffer__explorer_input__default_workflow_type="judged_outside",
        explorer__auxiliary_models=auxiliary,
        explorer__runner_isolation="thread",
        synchronizer__sync_method="nccl",
    )
    run.plugin = WORKFLOW
    with serving(tmp_path / "model") as service:
        service.api_key = KEY
        # Set after the cluster's start, so that its processes do not have them by themselves.
        monkeypatch.setenv("JUDGE_URL", service.url)
        monkeypatch.setenv("KEY_OF_THE_JUDGE", KEY)
        monkeypatch.setenv("HF_TOKEN", KEY + "-of-the-hub")
        with Watched(run) as watched:
            assert watched.end() == 0, watched.output
    parts = placed(watched.logged)
    own = {name: gpus for name, (_, gpus) in parts.items() if gpus}
    assert set(own) == {ENGINE, "explorer_auxiliary_model_1_0", "trainer_rank_0", "trainer_rank_1"}
    assert sorted(own.values()) == ["0", "0", "1", "2"]
    assert {name for name, (_, gpus) in parts.items() if not gpus} == {"explorer", "trainer", "synchronizer"}
    assert all(gone_soon(pid) for pid, _ in parts.values())
    assert len(service.requests) == 8, "two for each rollout"
    assert KEY not in watched.output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_machine_that_leaves_takes_its_engine_and_nothing_else(
    tmp_path: Path, machines: Machines, plugins: Path
) -> None:
    """The engine is on the second machine: the trainer, which is where the command is, has the GPU of the first."""
    whole = steps(tmp_path / "whole").change(buffer__total_steps=STEPS)
    finish(whole, plugins, steps=STEPS)
    run = on_ray(tmp_path / "ray", machines.cluster, cluster__node_num=2, cluster__gpu_per_node=1)
    run.change(buffer__total_steps=STEPS)
    with Watched(run) as watched:
        watched.until("checkpoint of step 1:")
        before = watched.pid(ENGINE)
        machines.leave()
        watched.until("engine 0 is lost and will be started again")
        machines.come()
        assert watched.end() == 0, watched.output
    assert watched.pid(ENGINE) != before and gone_soon(before)
    assert all(gone_soon(pid) for pid, _ in placed(watched.logged).values())
    assert final_weights(run, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(whole.job)


SAY = """
import asyncio, sys
from tests.runtime.parts import Part
from trinity.runtime import ray as placement
from trinity.runtime.cluster import ClusterRequest
placement.connect(ClusterRequest(sys.argv[1], sys.argv[2]))
async def main():
    runtime = placement.RayRuntime(sys.argv[2])
    parts = await runtime.group(Part, 3, name="part")
    for part in parts:
        await part.say("one and the same line")
    ends = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    for tick in range(1000):  # Ray sums up what was repeated when a line comes after some seconds
        await parts[0].say(f"line {tick} of its own")
        if (await asyncio.wait([ends], timeout=0.5))[0]:
            break
    await runtime.close()
asyncio.run(main())
placement.disconnect()
"""


def lines_until(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the first `count` lines that say the same, and end the process."""
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < count and (line := process.stdout.readline()):
        found += [line] if "one and the same line" in line else []
    rest, _ = process.communicate(timeout=120)
    assert len(found) == count and "one and the same line" not in rest, found + [rest]
    return found


def test_lines_that_actors_repeat_are_shown_once_or_all(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    started = {}
    for dedup in ("1", "0"):
        monkeypatch.setenv("RAY_DEDUP_LOGS", dedup)
        command = [sys.executable, "-c", SAY, machines.address, f"dedup_{dedup}"]
        pipe = subprocess.PIPE
        started[dedup] = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    assert "repeated" not in "".join(lines_until(started["0"], 3))
    first, rest = lines_until(started["1"], 2)
    assert "repeated" not in first and "[repeated 2x across cluster]" in rest
