"""A run on a real Ray cluster: the same bits as in one process, and what becomes of it when a process dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ray_run import SIDES, STEPS, WAIT_S, Watched, gated, on_ray
from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.runtime.parts import Part
from tests.runtime.test_contract import gone_soon
from trinity.common.errors import EnvironmentProblem

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

END_S = 30.0
"""From the death of a process to the end of the run, its other processes included."""


VICTIMS = ("explorer", "trainer", "synchronizer")


def test_a_run_that_is_stopped_and_killed_on_ray_ends_with_the_bits_of_one_process(
    tmp_path: Path, cluster: Any, whole: TinyRun
) -> None:
    """One job from the first step to the last, interrupted in each way that there is."""
    run = on_ray(tmp_path, cluster, log__group_by_node=True, monitor__enable_ray_timeline=True)
    gate = gated(run)
    with Watched(run) as first:
        assert first.until_step() == 1
        first.process.send_signal(signal.SIGTERM)
        gate.touch()
        assert first.end() == 143, first.output
    gate.unlink()
    assert "resume with: " in first.output and " trinity run " in first.output and "\x1b[" not in first.output
    assert f"joined the Ray cluster at {cluster.address}" in first.output
    assert all(gone_soon(first.pid(name)) for name in SIDES)
    for victim in VICTIMS:
        killed(run, victim)
    driver_killed(run)
    gate.touch()
    with Watched(run) as last:
        last.until_step()
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
        watched.until_step()
        os.kill(watched.pid(victim), signal.SIGKILL)
        killed_at = time.monotonic()
        assert watched.end() == 5, watched.output
        assert all(gone_soon(watched.pid(name)) for name in SIDES)
        assert time.monotonic() - killed_at < END_S, watched.output
    process = f"{victim} (process {watched.pid(victim)} on "
    resume, failed = watched.output.splitlines()[-2:]
    assert resume.startswith("resume with: ") and " trinity run " in resume
    assert failed.startswith(f"failed with exit code 5: [E5701] {process}") and failed.endswith("/log")
    assert watched.output.count("is gone: its process ended without a word") == 1 and "error[" not in watched.output


def driver_killed(run: TinyRun) -> None:
    """Kill the driver after one more step: all actors end with it."""
    with Watched(run) as watched:
        watched.until_step()
        pids = [watched.pid(name) for name in SIDES]
        watched.process.kill()
        assert watched.end() == -signal.SIGKILL
    assert all(gone_soon(pid, 30) for pid in pids)


def test_a_machine_that_leaves_the_cluster_is_named(cluster: Any) -> None:
    from trinity.runtime import ray as placement
    from trinity.runtime.base import ActorDiedError, Resources
    from trinity.runtime.cluster import ClusterRequest

    async def main() -> None:
        runtime = placement.RayRuntime("leaving")
        with pytest.raises(EnvironmentProblem, match=r"E3405.*no machine 203\.0\.113\.7 in the Ray cluster; it has \d"):
            await runtime.start(Part, 1, resources=Resources(node="203.0.113.7"))
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
