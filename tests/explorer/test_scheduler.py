"""Deadlines, retries and typed outcomes of workflows that misbehave, with the engine running."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.explorer import scripted
from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import Asynchronous, Repeating, Resettable, Scoring, Scripted, make
from trinity.explorer.metrics import rollout_metrics
from trinity.explorer.outcome import BatchResult, Completed, Failed, Rejected, TimedOut


@pytest.fixture(autouse=True)
def _counts() -> None:
    scripted.ATTEMPTS.clear()
    scripted.INSTANCES.clear()
    scripted.PEAK.clear()
    scripted.THREADS.clear()


def kinds(result: BatchResult) -> list[str]:
    return [f"{r.task}.{r.run} {type(r.outcome).__name__}" for r in result.results]


@pytest.mark.difference("A scorer that fails")
def test_rewards_that_fail_and_that_are_stopped_are_counted_apart_and_never_a_zero(rollouts: Rollouts) -> None:
    """By the real sandbox, where the workflow scores and where the class of it leaves single responses out."""
    tasks = [
        make(Scripted, 1, act="ok"),
        make(Scripted, 2, act="scorer_fails", name="fails"),
        make(Scripted, 1, act="scorer_hangs", name="hangs"),
        make(Scripted, 1, act="nan"),
        make(Scoring, 4, acts=["ok", "scorer_fails", "ok", "scorer_fails"]),
        make(Scoring, 2, acts=["scorer_hangs", "scorer_hangs"]),
    ]
    result = rollouts.run(tasks, max_retry_times=2)
    assert kinds(result) == [
        "0.0 Completed", "1.0 RewardFailed", "1.1 RewardFailed", "2.0 RewardTimedOut", "3.0 Rejected",
        "4.0 Completed", "4.1 RewardFailed", "4.2 Completed", "4.3 RewardFailed", "5.0 RewardTimedOut",
        "5.1 RewardTimedOut",
    ]  # fmt: skip
    metrics = rollout_metrics(result)
    names = ("rejected_run_count", "reward_error_count", "reward_timeout_count", "timeout_run_count", "retry_count")
    assert [metrics[f"rollout/{name}"] for name in names] == [8, 4, 3, 0, 0]
    assert [run.outcome.reason for run in result.results[3:4]] == [
        "reward: [E5112] scoring took more than deadline_s = 0.5 s and was stopped; raise reward_fn_args.deadline_s if "
        "responses may take longer"
    ]
    assert {e.reward for e in result.experiences} == {1.0}


@pytest.mark.difference("A rollout that fails or is late")
def test_a_broken_rollout_is_dropped_and_counted_and_the_others_go_on(rollouts: Rollouts) -> None:
    tasks = [
        make(Scripted, 2, act="ok"),
        make(Scripted, 1, act="raise"),
        make(Scripted, 1, act="nan"),
        make(Scripted, 1, act="exit"),
        make(Scripted, 1, act="nothing"),
        make(Scripted, 1, act="broken_init"),
        make(Asynchronous, 1, act="exit"),
        make(Asynchronous, 1, act="cancel"),
        make(Scripted, 2, act="ok", reward=0.5),
    ]
    result = rollouts.run(tasks, max_retry_times=0)
    assert kinds(result) == [
        "0.0 Completed", "0.1 Completed", "1.0 Failed", "2.0 Rejected", "3.0 Failed", "4.0 Failed", "5.0 Failed",
        "6.0 Failed", "7.0 Failed", "8.0 Completed", "8.1 Completed",
    ]  # fmt: skip
    assert [e.eid.uid for e in result.experiences] == ["1/0/0/0/", "1/0/1/0/", "1/8/0/0/", "1/8/1/0/"]
    metrics = rollout_metrics(result)
    assert metrics["rollout/finished_task_count"] == 2
    assert metrics["rollout/dropped_group_count"] == 7
    assert metrics["rollout/failed_run_count"] == 6
    assert metrics["rollout/rejected_run_count"] == 1
    assert (metrics["rollout/reward/mean"], metrics["rollout/reward/min"]) == (0.75, 0.5)
    assert metrics["rollout/accuracy/max"] == 1.0
    assert metrics["response_length/mean"] == 3


def test_the_error_names_the_innermost_frame_of_the_user(rollouts: Rollouts, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="trinity.explorer"):
        result = rollouts.run([make(Scripted, 1, act="raise"), make(Asynchronous, 1, act="raise")], max_retry_times=0)
    for run in result.results:
        assert isinstance(run.outcome, Failed)
        assert "ZeroDivisionError: the plugin divides by zero" in run.outcome.error
        assert "scripted.py:" in run.outcome.error and run.outcome.error.endswith(" in act)")
    assert "Scripted failed on task 0 of batch 1 (rollout 0, row 7): ZeroDivisionError" in caplog.text


def test_the_same_error_is_logged_three_times_a_batch(rollouts: Rollouts, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="trinity.explorer"):
        rollouts.run([make(Scripted, 6, act="raise")], max_retry_times=0, num_runners=1)
    lines = [r.getMessage() for r in caplog.records if "ZeroDivisionError" in r.getMessage()]
    assert len(lines) == 3 and lines[-1].endswith("further failures of this batch are not shown")


def test_a_failure_is_retried_and_then_dropped(rollouts: Rollouts) -> None:
    tasks = [make(Scripted, 1, act="flaky", name="flaky"), make(Scripted, 1, act="raise", name="always")]
    result = rollouts.run(tasks, max_retry_times=2)
    assert kinds(result) == ["0.0 Completed", "1.0 Failed"]
    assert scripted.ATTEMPTS == {"flaky": 2, "always": 3}
    assert result.retry_count == 3


def test_a_bad_reward_is_not_retried(rollouts: Rollouts) -> None:
    result = rollouts.run([make(Scripted, 1, act="nan", name="nan")], max_retry_times=2)
    assert isinstance(result.results[0].outcome, Rejected)
    assert scripted.ATTEMPTS["nan"] == 1 and result.retry_count == 0


@pytest.mark.difference("`explorer.max_timeout`")
@pytest.mark.parametrize("workflow", [Scripted, Asynchronous])
def test_a_hung_workflow_ends_at_its_deadline_and_leaves_the_others_alone(rollouts: Rollouts, workflow: type) -> None:
    tasks = [make(workflow, 1, act="hang", name="stuck")] + [make(Scripted, 1, act="ok") for _ in range(20)]
    started = time.monotonic()
    result = rollouts.run(tasks, max_timeout=1.5, max_retry_times=1, num_runners=2)
    assert 3.0 <= time.monotonic() - started < scripted.HANG_S / 2
    assert result.results[0].outcome == TimedOut(1.5)
    assert result.count(Completed) == 20
    assert result.retry_count == 1
    assert rollout_metrics(result)["rollout/timeout_run_count"] == 1
    assert result.abandoned_count == 2


@pytest.mark.difference("`explorer.max_timeout`")
def test_an_abandoned_thread_is_replaced(rollouts: Rollouts) -> None:
    tasks = [make(Scripted, 1, act="hang", name="stuck"), make(Scripted, 1, act="ok", name="after")]
    result = rollouts.run(tasks, max_timeout=1.5, max_retry_times=0, num_runners=1)
    assert kinds(result) == ["0.0 TimedOut", "1.0 Completed"]
    assert scripted.THREADS["after"] == {"runner_0000+1"}


def test_repeats_of_a_repeating_workflow_are_one_call_or_split(rollouts: Rollouts) -> None:
    task = make(Repeating, 5, rewards=[1.0, 0.0, float("nan"), "skip", 1.0], name="group")
    result = rollouts.run([task])
    assert kinds(result) == ["0.0 Completed", "0.1 Completed", "0.2 Rejected", "0.3 Failed", "0.4 Completed"]
    assert scripted.ATTEMPTS["group"] == 1
    split = rollouts.run([task], max_repeat_times_per_runner=2, max_retry_times=0)
    assert kinds(split) == kinds(result)
    assert scripted.ATTEMPTS["group"] == 1 + 3
    assert [e.eid.run for e in split.experiences] == [0, 1, 4]


def test_a_resettable_workflow_is_used_again_until_it_fails(rollouts: Rollouts) -> None:
    tasks = [make(Resettable, 2, act="ok"), make(Resettable, 1, act="raise"), make(Resettable, 2, act="ok")]
    rollouts.run(tasks, max_retry_times=0, num_runners=1)
    assert scripted.INSTANCES["Resettable"] == 2
    rollouts.run([make(Scripted, 3, act="ok")], num_runners=1)
    assert scripted.INSTANCES["Scripted"] == 3


def test_turns_are_numbered_and_averaged_into_one_reward_of_the_run(rollouts: Rollouts) -> None:
    result = rollouts.run([make(Scripted, 1, act="turns")])
    assert [e.eid.uid for e in result.experiences] == ["1/0/0/0/", "1/0/0/1/"]
    assert rollout_metrics(result)["rollout/reward/mean"] == 0.75


@pytest.mark.parametrize(
    ("mode", "at_once"), [("sequential", False), ("asynchronous", True), ("multi-threading", True)]
)
def test_concurrent_mode_decides_whether_repeats_overlap(rollouts: Rollouts, mode: Any, at_once: bool) -> None:
    task = make(Asynchronous, 4, act="ok", name=mode, delay=0.5 if at_once else 0.05)
    result = rollouts.run([task], concurrent_mode=mode, num_runners=1)
    assert result.count(Completed) == 4
    assert (scripted.PEAK[mode] > 1) is at_once


def test_asynchronous_mode_does_the_repeats_of_a_synchronous_workflow_in_turn(
    rollouts: Rollouts, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, num_threads in (("multi-threading", 3), ("asynchronous", 1)):
        tasks = [make(Scripted, 3, act="ok", name=f"in turn {mode}") for _ in range(2)]
        result = rollouts.run(tasks, concurrent_mode=mode, num_runners=1)
        assert result.count(Completed) == 6 and len(scripted.THREADS[f"in turn {mode}"]) == num_threads
    warnings = [record.getMessage() for record in caplog.records if "concurrent_mode" in record.getMessage()]
    assert len(warnings) == 1 and "the workflow Scripted is not" in warnings[0]


def test_the_order_of_arrival_does_not_show_in_the_result(rollouts: Rollouts) -> None:
    tasks = [make(Asynchronous, 2, act="ok", delay=0.02 * (5 - i), reward=i / 10) for i in range(5)]
    result = rollouts.run(tasks, num_runners=5)
    assert [(e.eid.task, e.eid.run, e.reward) for e in result.experiences] == [
        (i, run, i / 10) for i in range(5) for run in range(2)
    ]


def test_batches_that_overlap_share_the_runners_and_the_older_one_goes_first(rollouts: Rollouts) -> None:
    """A deadline of 1.6 s would pass for a task that waits for another one's thread."""

    async def scenario() -> tuple[list[BatchResult], list[str]]:
        ended: list[str] = []

        async def batch(number: int) -> BatchResult:
            tasks = [make(Asynchronous, 1, act="ok", delay=0.4) for _ in range(4)] + [make(Scripted, 1, act="ok")]
            result = await scheduler.schedule(tasks, batch=number)
            ended.append(str(number))
            return result

        async with rollouts.scheduler(num_runners=2, max_timeout=1.6, max_retry_times=0) as scheduler:
            return list(await asyncio.gather(*(batch(number) for number in (1, 2, 3)))), ended

    results, ended = asyncio.run(scenario())
    assert [result.count(Completed) for result in results] == [5, 5, 5]
    assert ended == ["1", "2", "3"] and results[0].wall_s < results[2].wall_s - 0.8
    assert {e.eid.batch for e in results[1].experiences} == {2}


def test_cancelling_a_batch_waits_for_no_attempt(rollouts: Rollouts) -> None:
    async def scenario() -> float:
        async with rollouts.scheduler(num_runners=2, max_timeout=600.0) as scheduler:
            batch = asyncio.ensure_future(scheduler.schedule([make(Scripted, 1, act="hang")] * 4, batch=1))
            await asyncio.sleep(0.2)
            started = time.monotonic()
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            return time.monotonic() - started

    assert asyncio.run(scenario()) < scripted.HANG_S / 2


def test_hung_threads_do_not_keep_the_process_alive() -> None:
    program = """
import sys, tempfile
from pathlib import Path
from tests.explorer import scripted
from tests.explorer.rollouts import Rollouts
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, Task
scored = Task(AsyncSimpleWorkflow, raw_task={"prompt": "1+1="}, reward_fn=scripted.HangingReward)
tasks = [scripted.make(scripted.Scripted, act="hang"), scored]
result = Rollouts(Path(tempfile.mkdtemp())).run(tasks, max_timeout=0.5, max_retry_times=0)
sys.exit(0 if [type(r.outcome).__name__ for r in result.results] == ["TimedOut"] * 2 else 1)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
