"""Other ways to make the rollouts, and the end of an engine, change no bit of what is learned."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from safetensors.torch import load_file

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import STEPS, finish, make_run, stored
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from trinity.common.constants import FAILPOINTS_ENV_VAR
from trinity.common.errors import EnginesLostError, ExitCode
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.synchronizer import broadcast

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """A finished run of one engine."""
    run = make_run(tmp_path_factory.mktemp("plain"), {"algorithm_type": "grpo"})
    finish(run, plugins)
    return run


@pytest.mark.parametrize("key", ["max_repeat_times_per_runner=1", "runner_isolation=process"])
def test_groups_in_parts_and_runners_in_processes_learn_the_same(
    tmp_path: Path, plugins: Path, plain: TinyRun, key: str
) -> None:
    name, _, value = key.partition("=")
    keys = {f"explorer__{name}": yaml.safe_load(value), "log__group_by_node": True}
    run = make_run(tmp_path, {"algorithm_type": "grpo"}).change(**keys)
    finish(run, plugins)
    logs = {file.stem for file in (run.job / "log" / "127.0.0.1").iterdir()}
    runners = {stem for stem in logs if stem.startswith("explorer_")}
    assert logs - runners == {"run", "explorer", "trainer"} and bool(runners) == (value == "process")
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(plain.job)


def children() -> set[psutil.Process]:
    """Return the processes that this one has started; other tests may have left some to its end."""
    return set(psutil.Process().children())


def run_and_kill(run: TinyRun, plugins: Path, *, break_model: bool = False) -> None:
    """Run in this process; after the first explore step, kill one engine, or all of them and what they start from."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    before = children()

    def kill(actor: str, step: int, _: Mapping[str, float]) -> None:
        if actor != "explorer" or step != 1:
            return
        if break_model:
            (run.folder / "model" / "config.json").unlink()
        engines = sorted(children() - before, key=lambda engine: engine.pid)
        assert len(engines) == 2, "every child of the run is an engine"
        for engine in engines[: None if break_model else 1]:
            os.kill(engine.pid, signal.SIGKILL)

    options = RunOptions(plugin_dirs=(plugins,), on_metrics=kill)
    run_plan(plan_run(run.folder / "run.yaml", options), options)


@pytest.mark.difference("An engine that dies while a run trains")
def test_a_run_whose_engine_is_killed_goes_on_and_learns_the_same(
    tmp_path: Path, plugins: Path, plain: TinyRun
) -> None:
    run = make_run(tmp_path, {"algorithm_type": "grpo"}).change(explorer__rollout_model__engine_num=2)
    before = children()
    run_and_kill(run, plugins)
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(plain.job)
    last = run.lines("explorer")[-1]
    assert last["perf/engine/engines_serving"] == 2 and last["perf/engine/engine_restarts"] == 1
    assert min(last[f"perf/engine/{index}/answered_requests"] for index in range(2)) > 0
    assert sorted(last[f"perf/engine/{index}/restarts"] for index in range(2)) == [0, 1]
    assert children() <= before


def test_a_run_ends_when_no_engine_comes_back(tmp_path: Path, plugins: Path) -> None:
    run = make_run(tmp_path, {"algorithm_type": "grpo"})
    changes: dict[str, Any] = {"explorer__rollout_model__engine_num": 2, "explorer__engine_recovery_timeout": 2}
    run.change(**changes, deterministic=False, explorer__max_timeout=60)
    before = children()
    with pytest.raises(EnginesLostError, match="no inference engine has served for 2 s") as failure:
        run_and_kill(run, plugins, break_model=True)
    assert failure.value.exit_code == ExitCode.RUNTIME and failure.value.code == "E5630"
    assert children() <= before


@pytest.mark.nightly
def test_an_engine_killed_in_the_middle_of_a_broadcast_costs_a_repetition_and_no_bit(
    tmp_path: Path, plugins: Path, plain: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two engines one dies between two buckets of version 2; the other one's group breaks, and it asks again."""
    bucket = 4096
    weights = load_file(plain.job / "global_step_1" / "actor" / "huggingface" / "model.safetensors")
    buckets = -(-sum(tensor.numel() * 4 for tensor in weights.values()) // bucket)
    monkeypatch.setattr(broadcast, "BUCKET_BYTES", bucket)
    dying = "explorer_rollout_model_1:sync.after_bucket_received=kill"
    monkeypatch.setenv(FAILPOINTS_ENV_VAR, f"{dying}@{buckets + buckets // 2}")
    run = make_run(tmp_path, {"algorithm_type": "grpo"})
    run.change(explorer__rollout_model__engine_num=2, synchronizer__sync_method="nccl", synchronizer__sync_timeout=30)
    before, started = children(), time.monotonic()
    finish(run, plugins)
    log = (run.job / "log" / "run.log").read_text()
    assert "engine 1 is lost" in log and "killed by SIGKILL" in log
    assert "explorer_rollout_model_0: broadcast of version 2 broke" in log, "the other one's wait ended with the group"
    assert time.monotonic() - started < 60
    assert [line["rollout/model_version"] for line in run.lines("explorer")] == [0, 1, 2]
    assert run.lines("explorer")[-1]["perf/engine/engine_restarts"] == 1
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert children() <= before


SLOW = '''
"""A workflow that takes long for some rows."""

import asyncio

from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow


@WORKFLOWS.register_module("slow_for_some")
class SlowForSome(AsyncSimpleWorkflow):
    """Waits for a minute where the question begins with an odd digit."""

    async def run_async(self):
        if int(self.task.task_desc[0]) % 2:
            await asyncio.sleep(60)
        return await super().run_async()
'''


def test_a_run_goes_on_without_its_slowest_tasks(tmp_path: Path, plugins: Path) -> None:
    """Of the two tasks of a step one is slow; what the other gives is trained, and nothing of the slow one is."""
    run = make_run(tmp_path, {"algorithm_type": "grpo"})
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "slow_for_some.py").write_text(SLOW)
    run.change(
        deterministic=False,
        buffer__total_steps=4,
        buffer__train_batch_size=4,
        buffer__explorer_input__default_workflow_type="slow_for_some",
        explorer__over_rollout={"ratio": 0.5, "wait_after_min": 0.05},
        explorer__dynamic_timeout={"enable": True, "ratio": 1000.0},
        explorer__runner_state_report_interval=0.02,
        synchronizer__sync_style="dynamic_by_explorer",
    )
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(plugin_dirs=(plugins, tmp_path / "own"))
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    assert result.error is None and result.stages[-1].training_step == 4
    lines = run.lines("explorer")
    assert [line["rollout/unfinished_task_count"] for line in lines] == [1] * 4
    assert [line["rollout/unfinished_run_count"] for line in lines] == [4] * 4
    assert [line["experience_pipeline/experience_count"] for line in lines] == [4] * 4
    with stored(run) as store:
        counts = store.counts("experience_buffer", "tiny/run")
    assert (counts["trained"], counts["ready"], counts["claimed"]) == (16, 0, 0)
    state = json.loads((run.job / "global_step_4" / "explorer.json").read_text())
    assert state["times"]["count"] > 0, "a resumed run knows how long attempts take"
    assert "task 1 of batch 1" in (run.job / "log" / "explorer.log").read_text()
