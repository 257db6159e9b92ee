"""Runners with processes of their own: what ends or blocks one of them ends one attempt, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
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
from trinity.explorer.acceptance import of_batch
from trinity.explorer.assembly import build_scheduler, runner_place
from trinity.explorer.isolation import shared
from trinity.explorer.isolation.child import DistantEngine
from trinity.explorer.isolation.parent import ProcessRunner
from trinity.explorer.isolation.place import RunnerPlace
from trinity.explorer.metrics import rollout_metrics
from trinity.explorer.outcome import Completed, Failed, OverMemory, TimedOut
from trinity.explorer.scheduler import Scheduler
from trinity.runtime.batched import BatchedCalls, Fetched
from trinity.runtime.local import LocalRuntime
from trinity.utils.cores import available_cores


@asynccontextmanager
async def isolated(rollouts: Rollouts, *, runners: int = 2, **explorer: Any) -> AsyncIterator[Scheduler]:
    """Give a prepared scheduler whose runners are processes."""
    section = {
        "rollout_model": {"dtype": "float32", "seed": 3},
        "runner_isolation": "process",
        "runners_per_process": 1,
        "runner_per_model": runners,
        "env_vars": {"DRASTIC_VARIABLE": "7"},
    }
    config = rollouts.config(explorer=section | {"max_timeout": 4.0, "max_retry_times": 1} | explorer)
    engine, runtime = create_inference_model(config), LocalRuntime()
    await engine.prepare()
    scheduler = build_scheduler(config, engine, place=runner_place(config, engine, (), runtime))
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


@pytest.mark.difference("A runner that dies")
def test_what_ends_or_blocks_a_process_ends_one_attempt(rollouts: Rollouts, tmp_path: Path) -> None:
    """A held interpreter lock, an exit and a segmentation fault, among tasks that continue and retries that succeed."""
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


@pytest.mark.parametrize("act", [pytest.param("hold", marks=pytest.mark.nightly), "segfault"])
def test_what_ends_or_blocks_a_shared_process_costs_its_neighbours_no_attempt(
    rollouts: Rollouts, tmp_path: Path, act: str
) -> None:
    """No retry is allowed: an attempt that was counted for another's fault would be a failure."""
    tasks = [drastic(tmp_path, act, act), *(drastic(tmp_path, f"slow {index}", "pause") for index in range(3))]

    async def scenario() -> Any:
        settings = {"runners_per_process": 3, "max_retry_times": 0, "max_timeout": 8.0}
        async with isolated(rollouts, runners=3, **settings) as scheduler:
            return await scheduler.schedule(tasks, batch=1)

    result = asyncio.run(scenario())
    outcomes = [run.outcome for run in result.results]
    ends = TimedOut if act == "hold" else Failed
    assert [type(outcome) for outcome in outcomes] == [ends] + [Completed] * 3
    metrics = rollout_metrics(result)
    assert metrics["rollout/retry_count"] == 0
    assert metrics["rollout/runner_restart_count"] == 2, "the shared process, and then that of the one who did it"
    assert len(attempts(tmp_path, act)) == 2, "once beside others and once alone"
    pids = {pid for file in tmp_path.iterdir() for pid in attempts(tmp_path, file.name)}
    assert not any(is_alive(pid) for pid in pids)


def test_a_process_that_takes_too_much_memory_is_killed_and_replaced(rollouts: Rollouts, tmp_path: Path) -> None:
    """The attempt has a typed outcome that is counted; its neighbour is repeated and not counted."""
    tasks = [drastic(tmp_path, "fill", "fill"), *(drastic(tmp_path, f"good {index}", "pause") for index in range(3))]
    settings = {"max_timeout": 120.0, "max_retry_times": 0, "runners_per_process": 2}

    async def scenario() -> Any:
        async with isolated(rollouts, runner_memory_bytes=2 << 30, **settings) as scheduler:
            return await scheduler.schedule(tasks, batch=1)

    result = asyncio.run(scenario())
    outcomes = [run.outcome for run in result.results]
    assert [type(outcome) for outcome in outcomes] == [OverMemory] + [Completed] * 3
    assert isinstance(outcomes[0], OverMemory) and "explorer.runner_memory_bytes (2147483648)" in outcomes[0].error
    metrics = rollout_metrics(result)
    assert (metrics["rollout/over_memory_run_count"], metrics["rollout/failed_run_count"]) == (1, 1)
    assert (metrics["rollout/retry_count"], metrics["rollout/timeout_run_count"]) == (0, 0)
    assert metrics["rollout/runner_restart_count"] == 2, "the shared process, and then that of the one who did it"
    pids = {pid for file in tmp_path.iterdir() for pid in attempts(tmp_path, file.name)}
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("held_after_s", [0.0, 4.3])  # the second is after the sign of life that precedes the deadline
def test_a_process_that_is_held_is_killed_within_a_second_of_the_deadline(
    rollouts: Rollouts, tmp_path: Path, held_after_s: float
) -> None:
    """One second, and what this machine's own event loop is late between the deadline and the death."""
    deadline_s, late, began, died = 5.0, dict[float, float](), list[float](), list[float]()
    other = of_batch(drastic(tmp_path, "long", "pause", seconds=60.0), batch=1, index=1)
    config = rollouts.config(explorer={"rollout_model": {"dtype": "float32", "seed": 3}, "runners_per_process": 2})

    async def measure_lateness() -> None:
        while True:
            planned = time.monotonic() + 0.05
            await asyncio.sleep(0.05)
            late[time.monotonic()] = time.monotonic() - planned

    async def wait_death() -> None:
        while not (tmp_path / "hold").exists() or is_alive(attempts(tmp_path, "hold")[0]):
            await asyncio.sleep(0.05)
        died.append(time.monotonic())
        await asyncio.sleep(0.1)  # until the lateness of this moment is known

    async def scenario() -> None:
        engine, runtime = create_inference_model(config), LocalRuntime()
        await engine.prepare()
        place = RunnerPlace(runtime, config, [engine], runner_count=2)
        one, two = (ProcessRunner(name, place, max_timeout=60.0) for name in ("one", "two"))
        await asyncio.gather(one.prepare(), two.prepare())
        measuring = asyncio.ensure_future(measure_lateness())
        neighbour = asyncio.ensure_future(two.attempt(other, range(1)))
        task = drastic(tmp_path, "hold", "hold", not_before=time.time() + held_after_s)
        began.append(time.monotonic())
        holding = asyncio.ensure_future(one.attempt(of_batch(task, batch=1, index=0), range(1), timeout_s=deadline_s))
        try:
            await wait_death()
        finally:
            for work in (measuring, neighbour, holding):
                work.cancel()
            await asyncio.gather(measuring, neighbour, holding, return_exceptions=True)
            place.close()
            await runtime.close(grace_s=5.0)
            await engine.shutdown()

    asyncio.run(scenario())
    due = began[0] + deadline_s
    allowed_s = 1.0 + sum(seconds for woken, seconds in late.items() if due <= woken and woken - seconds <= died[0])
    assert due <= died[0] <= due + allowed_s, (died[0] - due, allowed_s)


def test_a_process_that_is_held_is_replaced_by_one_that_was_there_before(
    rollouts: Rollouts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No attempt waits for a start, and what was used is followed by another."""
    caplog.set_level(logging.INFO, logger="trinity")
    config = rollouts.config(explorer={"rollout_model": {"dtype": "float32", "seed": 3}, "runners_per_process": 1})
    task = of_batch(drastic(tmp_path, "hold", "hold", times=1), batch=1, index=0)

    def started() -> list[int]:
        lines = [record.getMessage() for record in caplog.records]
        return [int(line.rpartition(" ")[2]) for line in lines if " is process " in line]

    async def until_started(count: int) -> list[int]:
        while len(started()) < count:
            await asyncio.sleep(0.05)
        return started()

    async def scenario() -> list[Any]:
        engine, runtime = create_inference_model(config), LocalRuntime()
        await engine.prepare()
        place = RunnerPlace(runtime, config, [engine], runner_count=1)
        runner = ProcessRunner("one", place, max_timeout=60.0)
        try:
            await runner.prepare()
            first, spare = await asyncio.wait_for(until_started(2), 120.0)
            held, _ = await runner.attempt(task, range(1), timeout_s=2.0)
            assert attempts(tmp_path, "hold") == [first]
            again, _ = await runner.attempt(task, range(1), timeout_s=60.0)
            assert attempts(tmp_path, "hold") == [first, spare]
            *_, another = await asyncio.wait_for(until_started(3), 120.0)
            os.kill(another, signal.SIGKILL)
            while is_alive(another):
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.0)  # until the place has heard of it
            lone = await place.alone().ready()
            assert lone.pid not in (first, spare, another) and is_alive(lone.pid), "a spare that ended is not used"
            return [*held, *again]
        finally:
            place.close()
            await runtime.close(grace_s=5.0)
            await engine.shutdown()

    assert [type(outcome) for outcome in asyncio.run(scenario())] == [TimedOut, Completed]
    assert not any(is_alive(pid) for pid in started())


def test_a_late_attempt_lets_its_neighbours_go_on(
    rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a late attempt is killed when the others in it have ended, and used by nobody after it."""
    monkeypatch.setattr(shared, "SIGN_OF_LIFE_S", 60.0)  # so that a busy machine is not taken for a held interpreter
    config = rollouts.config(explorer={"rollout_model": {"dtype": "float32", "seed": 3}, "runners_per_process": 2})
    acts = {"late": "sleep", "long": "pause", "next": "chat"}
    late, long, following = (
        of_batch(drastic(tmp_path, name, act, seconds=8.0), batch=1, index=0) for name, act in acts.items()
    )

    async def scenario() -> list[Any]:
        engine, runtime = create_inference_model(config), LocalRuntime()
        await engine.prepare()
        place = RunnerPlace(runtime, config, [engine], runner_count=2)
        one, other = (ProcessRunner(name, place, max_timeout=60.0) for name in ("one", "other"))
        try:
            ends = await asyncio.gather(
                one.attempt(late, range(1), timeout_s=3.0), other.attempt(long, range(1), timeout_s=60.0)
            )
            return [outcomes[0] for outcomes, _ in (*ends, await other.attempt(following, range(1)))]
        finally:
            place.close()
            await runtime.close(grace_s=5.0)
            await engine.shutdown()

    outcomes = asyncio.run(scenario())
    assert [type(outcome) for outcome in outcomes] == [TimedOut, Completed, Completed]
    (first,), (neighbour,), (after,) = (attempts(tmp_path, name) for name in acts)
    assert first == neighbour != after and not is_alive(first)


def test_there_are_as_many_processes_as_cores(rollouts: Rollouts, tmp_path: Path) -> None:
    tasks = [drastic(tmp_path, f"task {index}") for index in range(12)]

    async def scenario() -> Any:
        async with isolated(rollouts, runners=6, runners_per_process=None, max_timeout=60.0) as scheduler:
            return await scheduler.schedule(tasks, batch=1)

    result = asyncio.run(scenario())
    assert [type(run.outcome) for run in result.results] == [Completed] * 12
    pids = {pid for file in tmp_path.iterdir() for pid in attempts(tmp_path, file.name)}
    assert len(pids) == min(6, available_cores())


def test_a_process_that_does_not_start_is_told_with_its_reason(rollouts: Rollouts) -> None:
    async def scenario() -> None:
        broken = {"PYTHONHOME": "/nowhere"}
        async with isolated(rollouts, runners=1, env_vars=broken, runner_prepare_max_retries=1):
            pass

    with pytest.raises(WorkflowError, match="runners_0 did not start in 2 attempts") as failure:
        asyncio.run(scenario())
    assert failure.value.code == "E5634"


def test_a_workflow_cannot_change_the_weights_of_a_distant_engine() -> None:
    async def scenario() -> None:
        await DistantEngine(BatchedCalls(Fetched("the engines")), 0).update_weights({}, version=1)

    with pytest.raises(EngineError, match="a workflow cannot change the weights") as failure:
        asyncio.run(scenario())
    assert failure.value.code == "E5635"
