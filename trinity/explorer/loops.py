"""The order of explore steps.

They run one after the other, or overlap (style `fully_async`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trinity.common.constants import Mode, SyncStyle
from trinity.explorer.admission import (
    ApartAdmission,
    BoundedAdmission,
    ScheduledAdmission,
    batches_at_once,
    is_streamed,
)
from trinity.explorer.assembly import num_runners
from trinity.explorer.stream import StreamLimits, explore_streamed
from trinity.synchronizer.schedule import sync_schedule

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.workflows.task import Task
    from trinity.explorer.admission import Admission, FollowingAdmission
    from trinity.explorer.producer import Producer
    from trinity.explorer.steps import ExploredBatch, ExploreSteps
    from trinity.synchronizer.served import ServedWeights

START_POLL_S = 0.1  # between two looks at whether the next batch may begin


@dataclass
class _Flight:
    step: int
    batch: asyncio.Task[ExploredBatch | None]


def loop_of(config: Config, *, served: ServedWeights, producer: Producer) -> Callable[[ExploreSteps], Awaitable[None]]:
    """Return the loop over explore steps with its rule of admission."""
    schedule = sync_schedule(config)
    if schedule.is_fixed:
        kind = ApartAdmission if config.mode == Mode.EXPLORE else ScheduledAdmission
        timeout_s = config.synchronizer.sync_timeout
        fixed = kind(schedule, served=served, producer=producer, timeout_s=timeout_s)
        return partial(explore_in_turn, admission=fixed)
    bounded = BoundedAdmission(config, schedule, served=served, producer=producer)
    if is_streamed(config):
        limits = StreamLimits(num_runners(config), batches_at_once(config) * config.buffer.batch_size)
        return partial(explore_streamed, admission=bounded, limits=limits)
    if schedule.style == SyncStyle.FULLY_ASYNC:
        return partial(explore_overlapped, admission=bounded, limit=batches_at_once(config))
    return partial(explore_in_turn, admission=bounded)


async def explore_in_turn(steps: ExploreSteps, *, admission: Admission) -> None:
    """Explore to the end, one step after the other."""
    while True:
        step = steps.state.explore_step + 1
        tasks = await steps.read_tasks(step)
        if not tasks or not await admission.admit(step):
            return
        if steps.is_eval_due(step - 1):
            await steps.evaluate(step - 1)
        batch = await steps.roll_out(step, tasks)
        if batch is None:
            return
        await steps.finish_step(step, batch)


async def explore_overlapped(steps: ExploreSteps, *, admission: FollowingAdmission, limit: int) -> None:
    """Explore to the end with at most `limit` batches under way.

    Steps finish in their order.

    The engine takes newer weights meanwhile. An evaluation waits for the end of what is under way, and nothing begins
    before its own. What is under way when the explorer is cancelled is explored again after
    a resume, since a snapshot knows finished steps only.

    Raises:
        TrinityError: what ended a batch or the following of the trainer; the other batches are ended.
    """
    flights: deque[_Flight] = deque()
    following = asyncio.ensure_future(admission.follow())
    ahead = _Ahead(steps)
    try:
        while True:
            while len(flights) < limit and (tasks := await ahead.tasks()):
                if steps.is_eval_due(ahead.step - 1):
                    if flights:  # an evaluation has the engine, and its weights, for itself
                        break
                    async with admission.lock:
                        await steps.evaluate(ahead.step - 1)
                verdict = await admission.admit(ahead.step, in_flight=len(flights))
                if verdict is None:
                    break
                if not verdict:
                    ahead.is_ended = True
                    break
                batch = asyncio.ensure_future(steps.roll_out(ahead.step, tasks))
                flights.append(_Flight(ahead.step, batch))
                ahead.advance()
            if not flights:
                return
            first = flights[0]
            # The rollouts of a batch have their own deadlines; this wait only looks again at what may begin.
            await asyncio.wait({first.batch, following}, timeout=START_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            if first.batch.done():
                flights.popleft()
                ended = first.batch.result()
                if ended is not None:  # else the last tasks were left out; what began after them continues
                    await steps.finish_step(first.step, ended)
    finally:
        left = [following, *(flight.batch for flight in flights)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class _Ahead:
    """The step that comes next, and its tasks once they are read."""

    def __init__(self, steps: ExploreSteps) -> None:
        self.step = steps.state.explore_step + 1
        self.is_ended = False
        self._steps = steps
        self._tasks: list[Task] | None = None

    async def tasks(self) -> list[Task]:
        """Return the tasks of the step; none at the end."""
        if self._tasks is None:
            self._tasks = await self._steps.read_tasks(self.step)
        return [] if self.is_ended else self._tasks

    def advance(self) -> None:
        """Continue to the next step."""
        self.step += 1
        self._tasks = None
