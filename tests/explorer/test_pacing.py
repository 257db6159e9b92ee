"""Straggler tasks that may be abandoned, deadlines from measured times, and reports of what the runners do."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
from typing import Any

import pytest

from tests.explorer import scripted
from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import Asynchronous, Scripted, make
from trinity.explorer.metrics import rollout_metrics
from trinity.explorer.outcome import Completed, TimedOut
from trinity.explorer.pacing import AttemptTimes, BatchProgress, DynamicTimeout, OverRollout

RULE = OverRollout(0.5, wait_after_min=0.1)


def test_the_needed_share_is_rounded_up_and_survives_floats() -> None:
    assert [OverRollout(ratio, 0).needed(10) for ratio in (0.0, 0.1, 0.25, 0.3, 0.99)] == [10, 9, 8, 7, 1]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_batch_goes_on_without_its_slowest_tasks(rollouts: Rollouts, keeps: bool) -> None:
    """Tasks 0 and 1 are done; task 2 has one run of two; task 3 hangs in a thread."""
    tasks = [
        make(Asynchronous, 2, act="ok"),
        make(Asynchronous, 2, act="ok"),
        make(Asynchronous, 2, act="once", name=f"one of two, {keeps}"),
        make(Scripted, 2, act="hang"),
    ]
    started = time.monotonic()
    rule = OverRollout(0.5, wait_after_min=0.6, return_partial_tasks=keeps)
    result = rollouts.run(tasks, over_rollout=rule, num_runners=4)
    assert 0.6 < time.monotonic() - started < scripted.HANG_S / 2
    done = [(run.task, run.run) for run in result.results]
    assert done == [(0, 0), (0, 1), (1, 0), (1, 1)] + ([(2, 0)] if keeps else [])
    metrics = rollout_metrics(result)
    assert metrics["rollout/unfinished_task_count"] == 2
    assert metrics["rollout/unfinished_run_count"] == (3 if keeps else 4)
    assert metrics["rollout/abandoned_thread_count"] == 2
    assert metrics["rollout/finished_task_count"] == (3 if keeps else 2)


def test_what_comes_late_is_in_no_batch(rollouts: Rollouts) -> None:
    async def scenario() -> list[list[str]]:
        async with rollouts.scheduler(over_rollout=RULE, num_runners=2) as scheduler:
            first = await scheduler.schedule(
                [make(Asynchronous, act="ok"), make(Asynchronous, act="ok", delay=1.2)], batch=1
            )
            second = await scheduler.schedule([make(Asynchronous, act="ok", delay=1.5)], batch=2)
            return [[e.eid.uid for e in result.experiences] for result in (first, second)]

    assert asyncio.run(scenario()) == [["1/0/0/0/"], ["2/0/0/0/"]]


def test_an_evaluation_waits_for_every_task(rollouts: Rollouts) -> None:
    tasks = [make(Asynchronous, act="ok", delay=delay) for delay in (0.0, 0.4)]
    result = rollouts.run([dataclasses.replace(task, is_eval=True) for task in tasks], over_rollout=RULE)
    assert result.count(Completed) == 2 and result.unfinished_task_count == 0


def test_the_deadline_is_a_multiple_of_the_average_after_the_warm_up() -> None:
    times = AttemptTimes(10.0, DynamicTimeout(3.0, warmup_min_steps=2))
    deadlines = []
    for batch in ([1.0, 2.0], [3.0], [6.0, 6.0, 6.0]):
        for seconds in batch:
            times.note(seconds)
        times.end_batch()
        deadlines.append((times.deadline_s, times.is_shortened))
    assert deadlines == [(10.0, False), (6.0, True), (10.0, False)]
    again = AttemptTimes(10.0, DynamicTimeout(1.0, warmup_min_steps=3))
    again.load_state_dict(times.state_dict())
    assert again.deadline_s == 4.0
    assert AttemptTimes(10.0, None).deadline_s == 10.0


def test_a_slow_task_ends_at_the_dynamic_deadline(rollouts: Rollouts) -> None:
    async def scenario() -> Any:
        settings = {"max_timeout": 20.0, "max_retry_times": 0, "num_runners": 1}
        async with rollouts.scheduler(dynamic_timeout=DynamicTimeout(5.0, 1), **settings) as scheduler:
            await scheduler.schedule([make(Asynchronous, act="ok", delay=0.1)] * 3, batch=1)
            slow = make(Asynchronous, act="hang")
            return (
                await scheduler.schedule([slow], batch=2),
                scheduler.times.deadline_s,
                await scheduler.schedule([dataclasses.replace(make(Asynchronous, act="ok", delay=1.0), is_eval=True)],
                                         batch="2/eval"),
            )  # fmt: skip

    result, deadline_s, evaluated = asyncio.run(scenario())
    assert result.results[0].outcome == TimedOut(deadline_s, "explorer.dynamic_timeout.ratio")
    assert 0.5 <= deadline_s <= result.wall_s < scripted.HANG_S / 2
    assert "(explorer.dynamic_timeout.ratio)" in result.reasons()[0]
    assert evaluated.count(Completed) == 1


def test_what_the_runners_do_is_reported(rollouts: Rollouts, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, logger="trinity.explorer"):
        rollouts.run([make(Asynchronous, act="ok", delay=0.7)], report_interval_s=0.2, num_runners=2)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("runner_")]
    assert re.match(r"runner_0000: task 0 of batch 1 \(rollout 0, row 7\), \d+\.\d s", lines[0])
    assert lines[1] == "runner_0001: idle" and len(lines) % 2 == 0


def test_progress_counts_a_task_when_all_its_parts_are_done() -> None:
    async def scenario() -> tuple[bool, set[int], bool]:
        progress = BatchProgress([0, 0, 1, 2])
        wait = asyncio.ensure_future(progress.enough(OverRollout(0.5, 0.0)))
        for part in (0, 1):
            progress.done(part)
        await asyncio.sleep(0.02)
        too_early, open_tasks = wait.done(), progress.unfinished
        progress.done(0)
        await asyncio.sleep(0.02)
        return too_early, open_tasks, wait.done()

    assert asyncio.run(scenario()) == (False, {0, 2}, True)
