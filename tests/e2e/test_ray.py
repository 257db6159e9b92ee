"""A run on a real Ray cluster, whole and in parts: the bits of one process, and what happens to it when one dies."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.parts import Parts
from tests.e2e.ray_run import SIDES, STEPS, WAIT_S, Watched, gated, on_ray, steps
from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.prepared import DEADLINE_S
from tests.runtime.parts import Part
from tests.runtime.test_contract import gone_soon
from trinity.cli.live import one_line
from trinity.common.errors import EnvironmentProblem, ExitCode
from trinity.launch.samples import Asked, samples_of

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

END_S = 30.0
"""From the death of a process to the end of the run, its other processes included."""


VICTIMS = ("explorer", "trainer", "synchronizer")

# Some seconds a step: the processes continue for a while without the head.
SLOWLY = ";".join(
    f"{place}=sleep"
    for place in ("train.before_step", "train.after_step", "explore.after_rollout", "store.append.before_commit")
)


@pytest.mark.nightly
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


def test_the_command_shows_the_rollouts_of_an_explorer_that_is_another_process(tmp_path: Path, cluster: Any) -> None:
    run = on_ray(tmp_path, cluster)
    ended = run.finish(timeout_s=600)
    assert ended.status == 0, ended.output
    shown = re.findall(r"^\[run\] rollout: reward \d\.\d{3}.*?: (.* -> .*)$", ended.output, re.MULTILINE)
    known = samples_of(run.job, Asked(number=1000))
    texts = {" -> ".join(repr(one_line(sample[text])) for text in ("prompt", "response")) for sample in known}
    assert shown and set(shown) <= texts, ended.output
    page = (run.job / "report.html").read_text()
    assert any(html.escape(str(sample["response"])) in page for sample in known), "and so does the report"


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
    assert watched.pid("explorer_runners_2") != victim, "the third process, ready beside one of each runner"
    assert sum(line.get("rollout/runner_restart_count", 0) for line in run.lines("explorer")) == 1
    assert final_weights(run, last) == final_weights(whole, last)
    assert min(line["perf/sync_gb_per_second"] for line in run.lines("explorer") if line["step"] > 1) > 0


@pytest.mark.nightly
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
    assert process.wait(timeout=DEADLINE_S) == ExitCode.RUNTIME, parts.output("trainer")
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
