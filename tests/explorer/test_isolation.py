"""Runners with processes of their own: what ends or blocks one of them ends one attempt, and nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.explorer.drastic import drastic
from tests.explorer.rollouts import Rollouts
from trinity.common.models import create_inference_model
from trinity.explorer.assembly import build_scheduler
from trinity.explorer.metrics import rollout_metrics
from trinity.explorer.outcome import Completed, Failed, TimedOut
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
    config = rollouts.config(explorer=section | {"max_timeout": 2.0, "max_retry_times": 1} | explorer)
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
    pids = {pid for file in tmp_path.iterdir() for pid in attempts(tmp_path, file.name)}
    assert os.getpid() not in pids and not any(is_alive(pid) for pid in pids)
    metrics = rollout_metrics(result)
    assert metrics["rollout/runner_restart_count"] == 4 and metrics["rollout/abandoned_thread_count"] == 1
    assert metrics["rollout/variable/min"] == 7 and metrics["rollout/retry_count"] == 4
    assert seconds < 60


def test_a_task_that_never_ends_is_timed_out_and_its_engine_calls_are_not_missed(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    async def scenario() -> Any:
        async with isolated(rollouts, runners=1, max_retry_times=0, max_timeout=1.0) as scheduler:
            tasks = [drastic(tmp_path, "stuck", "sleep"), drastic(tmp_path, "after")]
            first = await scheduler.schedule(tasks, batch=1)
            again = await scheduler.schedule([drastic(tmp_path, "again")], batch=1)
            return first, again

    first, again = asyncio.run(scenario())
    assert first.results[0].outcome == TimedOut(1.0)
    assert first.count(Completed) == 1 and again.count(Completed) == 1
    assert first.wall_s < 30
