"""The loop over tasks that begin and end one by one.

    runner idle, task read, bound kept --> under way --> done --enough for a step--> finish_step, beside what continues

Tasks are put into explore steps as they end. A step is still what is processed, stored with the explorer's snapshot,
and logged: only which tasks are in it follows from the order in which they end. `open_tasks` keeps what is in no step.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.explorer.step_tasks import tell_of_empty
from trinity.utils.deadline import within

if TYPE_CHECKING:
    from trinity.explorer.admission import TaskAdmission
    from trinity.explorer.open_tasks import Name, StreamedTasks
    from trinity.explorer.outcome import BatchResult
    from trinity.explorer.steps import ExploredBatch, ExploreSteps

POLL_S = 0.1  # between two looks at whether a task may begin


@dataclass(frozen=True)
class StreamLimits:
    """How many tasks there may be at once.

    Attributes:
        runners: tasks under way.
        tasks: tasks that have begun and are not in the log.
    """

    runners: int
    tasks: int


async def explore_streamed(steps: ExploreSteps, *, admission: TaskAdmission, limits: StreamLimits) -> None:
    """Explore to the end; tasks begin as soon as one may.

    Steps finish in their order, one at a time. The engine takes newer weights meanwhile. An evaluation waits for the
    tasks of the steps before it, and none of later steps begins before its end. Tasks that are in no finished step when
    the explorer is cancelled are attempted again after a resume: the snapshot names them.

    Raises:
        TrinityError: what ended a task, a step or the following of the trainer; everything under way is ended.
    """
    stream = _Stream(steps, admission, limits)
    following = asyncio.ensure_future(admission.follow())
    following.add_done_callback(stream.wake)
    try:
        while await stream.go_on():
            # Tasks have their own deadlines; this wait only looks again at what may begin.
            await stream.wait(POLL_S)
            if following.done():
                following.result()
    finally:
        left = [following, *stream.futures]
        for future in left:
            future.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@dataclass(frozen=True)
class _Begun:
    name: Name
    model_version: int


class _Stream:
    """What is under way, and what comes next."""

    def __init__(self, steps: ExploreSteps, admission: TaskAdmission, limits: StreamLimits) -> None:
        self._steps = steps
        self._admission = admission
        self._limits = limits
        self._running: dict[asyncio.Task[BatchResult], _Begun] = {}
        self._ended: list[asyncio.Task[BatchResult]] = []
        self._results: dict[Name, tuple[BatchResult, int]] = {}
        self._finishing: asyncio.Task[None] | None = None
        self._num_finishing = 0
        self._granted = 0
        self._ask_again = 0.0  # not before, after an answer of none
        self._step = steps.state.explore_step  # the last that was taken from the ended tasks
        self._num_empty, self._lost = 0, Counter[str]()
        self._last_ended = time.perf_counter()
        self._is_trainer_finished = False
        self._woken = asyncio.Event()

    @property
    def _tasks(self) -> StreamedTasks:
        return self._steps.streamed

    @property
    def futures(self) -> list[asyncio.Task[BatchResult] | asyncio.Task[None]]:
        """Everything under way."""
        finishing = [] if self._finishing is None else [self._finishing]
        return [*self._running, *finishing]

    def wake(self, _: object = None) -> None:
        """Let `wait` end."""
        self._woken.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until something under way ends, at most `timeout_s` seconds."""
        try:
            await within(self._woken.wait(), timeout_s)
        except TimeoutError:
            return

    async def go_on(self) -> bool:
        """Take what ended, finish a step, and begin what may; False at the end.

        Raises:
            TrinityError: what ended a task or a step.
        """
        self._woken.clear()
        self._take_ended()
        await self._begin()
        if self._finishing is None and not self._tasks.open.has_step:
            return bool(self._running) and not self._is_trainer_finished
        return True

    def _take_ended(self) -> None:
        ended, self._ended = self._ended, []
        for task in ended:
            begun = self._running.pop(task)
            self._results[begun.name] = (task.result(), begun.model_version)
            self._tasks.open.end(begun.name)
        if self._finishing is not None and self._finishing.done():
            self._finishing.result()
            self._finishing, self._num_finishing = None, 0

    async def _begin(self) -> None:
        """Finish a step that is complete, and begin tasks."""
        while self._finishing is None and self._tasks.open.has_step:
            await self._take_step()
        while len(self._running) < self._limits.runners and await self._has_next():
            if not self._granted and not await self._ask():
                return
            self._granted -= 1
            name, task = self._tasks.begin()
            running = asyncio.ensure_future(self._steps.roll_out_task(task, name=name))
            self._running[running] = _Begun(name, self._steps.model_version)
            running.add_done_callback(self._note_ended)

    def _note_ended(self, task: asyncio.Task[BatchResult]) -> None:
        self._ended.append(task)
        self.wake()

    async def _has_next(self) -> bool:
        """Return whether there is a task to begin; evaluate before if due."""
        tasks = self._tasks
        if self._is_trainer_finished:
            return False
        if tasks.open.waiting:
            return True
        last = self._step + len(tasks.open.sizes)
        if self._steps.is_eval_due(last):
            if tasks.open.sizes or self._finishing is not None:
                return False  # an evaluation has the engine, and its weights, for itself
            async with self._admission.lock:
                await self._steps.evaluate(last)
        return await self._steps.read_ahead(last + 1)

    async def _ask(self) -> bool:
        """Ask how many tasks may begin; return whether one may."""
        in_flight = len(self._running) + len(self._tasks.open.done) + self._num_finishing
        most = self._limits.tasks - in_flight
        is_idle = not self._running and self._finishing is None
        if most <= 0 or (time.perf_counter() < self._ask_again and not is_idle):
            return False
        admitted = await self._admission.admit_tasks(
            most=most, in_flight=in_flight, is_idle=is_idle, step=self._step + 1
        )
        self._is_trainer_finished = admitted is None
        self._granted = admitted or 0
        if not self._granted:
            self._ask_again = time.perf_counter() + POLL_S
        return self._granted > 0

    async def _take_step(self) -> None:
        """Begin to finish the next step; tasks of which nothing came are none."""
        names = self._tasks.open.take_step()
        found = [self._results.pop(name) for name in names]
        version = min(version for _, version in found)
        batch = self._steps.gather([result for result, _ in found], model_version=version, started=self._last_ended)
        self._last_ended = time.perf_counter()
        if not batch.result.finished_tasks:
            await self._leave_out(batch)
            return
        batch.times["rollout/empty_batch_count"] = self._num_empty
        batch.lost.update(self._lost)
        self._lost.clear()
        self._num_empty, self._step = 0, self._step + 1
        self._num_finishing = len(names)
        self._finishing = asyncio.ensure_future(self._steps.finish_step(self._step, batch))
        self._finishing.add_done_callback(self.wake)

    async def _leave_out(self, batch: ExploredBatch) -> None:
        self._num_empty += 1
        self._lost += batch.result.fates
        has_more = bool(self._tasks.open.sizes) or await self._steps.read_ahead(self._step + 1)
        is_first = not self._steps.state.explore_step
        tell_of_empty(self._step + 1, batch.result, num_empty=self._num_empty, is_first=is_first, has_more=has_more)
