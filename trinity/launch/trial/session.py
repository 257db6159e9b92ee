"""Engines of a configuration without a run, and rollouts of its tasks."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from trinity.explorer.recorded import RecordedModel
from trinity.launch.served_adapter import serve_adapter
from trinity.launch.side import close_all
from trinity.launch.trial.rollouts import Rollout, rollout_of
from trinity.runtime.event_loop import LoopWatch
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel
    from trinity.common.workflows.task import Task

logger = get_logger("launch")

BATCH = 1
"""The explore step whose random numbers the rollouts have: a run's first step."""
LOOP_GRACE_S = 10.0
RUNNERS_END_S = 1.0
RUNNER_THREAD = "runner_"
"""What the scheduler's runners, and so their threads, are called."""


@asynccontextmanager
async def own_engines(config: Config) -> AsyncIterator[list[InferenceModel]]:
    """Give the engines of the rollout model and the auxiliary ones, ready.

    They are in this process, and end with the context.
    """
    from trinity.engine.create import create_auxiliary_models, create_inference_model

    engines = [create_inference_model(config), *create_auxiliary_models(config)]
    try:
        for engine in engines:
            await engine.prepare()
        await serve_adapter(config, engines[0])
        yield engines
    finally:
        await close_all(engine.shutdown for engine in engines)


def first_tasks(config: Config, count: int, *, repeat_times: int = 1) -> list[Task]:
    """Return the tasks that a run would attempt first.

    Args:
        config: of the stage.
        count: most tasks; a smaller taskset gives fewer.
        repeat_times: rollouts of each.

    Raises:
        DataError: the dataset cannot be used.
    """
    from trinity.explorer.assembly import read_tasksets

    reader = read_tasksets(config)
    for each in reader.by_number.values():
        if each.quarantined:
            logger.warning(
                "taskset %r: %d of %d rows cannot be used and are left out; first: %s",
                *(each.config.name, len(each.quarantined), len(each.quarantined) + len(each), each.quarantined[0]),
            )
    tasks = reader.read(min(count, len(reader)))
    return [dataclasses.replace(task, repeat_times=repeat_times) for task in tasks]


@asynccontextmanager
async def attempts(
    config: Config, engines: Sequence[InferenceModel]
) -> AsyncIterator[Callable[[Sequence[Task]], Awaitable[list[Rollout]]]]:
    """Give a function that attempts tasks and returns every rollout.

    Each is made once, under `explorer.max_timeout`, by as many runners as the configuration gives one engine; they are
    the same for all calls.

    Args:
        config: of the stage, as `trial_stage` returned it.
        engines: of the rollout model and the auxiliary ones.
    """
    from trinity.explorer.assembly import build_scheduler

    recorded = [RecordedModel(engine) for engine in engines]
    scheduler = build_scheduler(config, recorded[0], auxiliary=recorded[1:])
    limit_s = config.explorer.max_timeout

    async def make(tasks: Sequence[Task]) -> list[Rollout]:
        for model in recorded:
            model.calls.clear()
        result = await scheduler.schedule(tasks, batch=BATCH)
        return [rollout_of(each, tasks[each.task], [model.calls for model in recorded]) for each in result.results]

    try:
        await scheduler.prepare()
        with LoopWatch(limit_s + LOOP_GRACE_S, what=f"explorer.max_timeout {limit_s:g} s and {LOOP_GRACE_S:g} s"):
            yield make
    finally:
        scheduler.close()
        await asyncio.to_thread(_wait_for_runners)


def _wait_for_runners() -> None:
    """Wait for the threads of runners, which free tensors at their end.

    The interpreter aborts if that falls together with its own end. A stuck one is left behind after `RUNNERS_END_S`.
    """
    end = time.monotonic() + RUNNERS_END_S
    for thread in threading.enumerate():
        if thread.name.startswith(RUNNER_THREAD):
            thread.join(max(end - time.monotonic(), 0.0))


async def attempted(config: Config, engines: Sequence[InferenceModel], tasks: Sequence[Task]) -> list[Rollout]:
    """Return every rollout of the tasks, by task and run; see `attempts`."""
    async with attempts(config, engines) as make:
        return await make(tasks)
