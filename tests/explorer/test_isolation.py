"""Runners with processes of their own: what ends or blocks one of them ends one attempt, and nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.explorer.drastic import drastic
from tests.explorer.rollouts import Rollouts
from trinity.common.errors import EngineError, WorkflowError
from trinity.common.models import create_inference_model
from trinity.explorer.assembly import build_scheduler
from trinity.explorer.isolation.child import Calls, DistantEngine
from trinity.explorer.metrics import rollout_metrics
from trinity.explorer.outcome import Completed, Failed
from trinity.explorer.scheduler import Scheduler
from trinity.runtime.local import LocalRuntime


@asynccontextmanager
async def isolated(rollouts: Rollouts, *, runners: int = 2, **explorer: Any) -> AsyncIterator[Scheduler]:
    """Give a prepared scheduler whose runners are processes."""
    section = {
        "rollout_model": {"dtype": "float32", "seed": 3},
        "runner_isolation": "process",
        "runner_per_model": runners,
        "env_vars": {"DRASTIC_VARIABLE": "7"},
    }
    config = rollouts.config(explorer=section | {"max_timeout": 4.0, "max_retry_times": 1} | explorer)
    engine, runtime = create_inference_model(config), LocalRuntime()
    await engine.prepare()
    scheduler = build_scheduler(config, engine, runtime=runtime)
    try:
        await scheduler.prepare()
        yield scheduler
    finally:
        scheduler.close()
        await runtime.close(grace_s=5.0)
        await engine.shutdown()


def attempts(folder: Path, name: str) -> list[int]:
    """Return the process of each attempt."""
    return [int(line) for line in (folder / name).read_text().splitlines()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_ends_or_blocks_a_process_ends_one_attempt(rollouts: Rollouts, tmp_path: Path) -> None:
    """A held interpreter lock, an exit and a segmentation fault, among tasks that go on and retries that succeed."""
    tasks = [
        drastic(tmp_path, "hold", "hold", times=1),
        drastic(tmp_path, "exit", "exit"),
        drastic(tmp_path, "segfault", "segfault", times=1),
        drastic(tmp_path, "raise", "raise"),
        *(drastic(tmp_path, f"good {index}") for index in range(6)),
    ]
    threads = rollouts.run([drastic(tmp_path, "thread")] * 10, num_runners=1)

    async def scenario() -> tuple[Any, float]:
        async with isolated(rollouts) as scheduler:
            started = time.monotonic()
            return await scheduler.schedule(tasks, batch=1), time.monotonic() - started

    result, seconds = asyncio.run(scenario())
    outcomes = [run.outcome for run in result.results]
    assert [type(outcome) for outcome in outcomes] == [Completed, Failed, Completed, Failed] + [Completed] * 6
    assert isinstance(outcomes[1], Failed) and "exit code 3" in outcomes[1].error
    assert isinstance(outcomes[3], Failed) and "LookupError: no such tool" in outcomes[3].error
    assert [len(attempts(tmp_path, name)) for name in ("hold", "exit", "segfault", "raise", "good 0")] == [
        2,
        2,
        2,
        2,
        1,
    ]
    here = {e.eid.task: e.tokens.tolist() for e in threads.experiences}
    assert all(here[e.eid.task] == e.tokens.tolist() for e in result.experiences), "the samples of runners in threads"
    pids = {pid for file in tmp_path.iterdir() if file.name != "thread" for pid in attempts(tmp_path, file.name)}
    assert os.getpid() not in pids and not any(is_alive(pid) for pid in pids)
    metrics = rollout_metrics(result)
    assert metrics["rollout/runner_restart_count"] == 4 and metrics["rollout/abandoned_thread_count"] == 1
    assert metrics["rollout/variable/min"] == 7 and metrics["rollout/retry_count"] == 4
    assert seconds < 60


def test_a_process_that_does_not_start_is_told_with_its_reason(rollouts: Rollouts) -> None:
    async def scenario() -> None:
        broken = {"PYTHONHOME": "/nowhere"}
        async with isolated(rollouts, runners=1, env_vars=broken, runner_prepare_max_retries=1):
            pass

    with pytest.raises(WorkflowError, match="runner_0000 did not start in 2 attempts") as failure:
        asyncio.run(scenario())
    assert failure.value.code == "E5634"


def test_a_workflow_cannot_change_the_weights_of_a_distant_engine() -> None:
    async def scenario() -> None:
        await DistantEngine(Calls(), 0).update_weights({}, version=1)

    with pytest.raises(EngineError, match="a workflow cannot change the weights") as failure:
        asyncio.run(scenario())
    assert failure.value.code == "E5635"
