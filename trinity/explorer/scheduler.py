"""Assigns tasks to runners, with repeats and retries.

In deterministic mode the assignment does not depend on timing.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trinity.common.workflows import describe
from trinity.common.workflows.task import Task
from trinity.explorer.acceptance import of_batch
from trinity.explorer.attempts import Runner
from trinity.explorer.isolation.parent import ProcessRunner
from trinity.explorer.isolation.place import RunnerPlace
from trinity.explorer.outcome import BatchResult, Completed, RolloutResult, is_retried
from trinity.explorer.pacing import AttemptTimes, BatchProgress, DynamicTimeout, OverRollout
from trinity.explorer.pool import RunnerPool
from trinity.explorer.runner import WorkflowRunner
from trinity.explorer.together import all_or_none
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.models.inference_model import InferenceModel
    from trinity.common.models.model import ModelWrapper
    from trinity.explorer.advantage_inputs import InputCompleter

logger = get_logger("explorer")

ConcurrentMode = Literal["sequential", "asynchronous", "multi-threading"]


@dataclass(frozen=True)
class SchedulerSettings:
    """How tasks are attempted.

    Attributes:
        num_runners: tasks (or parts of tasks) under way at once.
        max_timeout: deadline of one attempt in seconds.
        max_retry_times: further attempts after a failure or a timeout.
        max_repeat_times_per_runner: most rollouts of a task that one runner makes; None for all.
        concurrent_mode: how a runner makes the rollouts of a task where the workflow makes one per call.
        is_deterministic: assign tasks to runners by their place, and meet the engine in rounds.
        over_rollout: which tasks of a batch may be abandoned; None: no task.
        dynamic_timeout: how measured times shorten the deadline; None: they do not.
        report_interval_s: seconds between reports of what the runners do; 0: none.
    """

    num_runners: int
    max_timeout: float
    max_retry_times: int = 2
    max_repeat_times_per_runner: int | None = None
    concurrent_mode: ConcurrentMode = "sequential"
    is_deterministic: bool = False
    over_rollout: OverRollout | None = None
    dynamic_timeout: DynamicTimeout | None = None
    report_interval_s: float = 0.0


@dataclass(frozen=True)
class _Part:
    """Rollouts of one task that one runner makes."""

    task: Task
    index: int
    runs: range
    can_repeat: bool
    is_baseline: bool = False


class Scheduler:
    """Runs batches of tasks on a fixed number of runners.

    Args:
        engine: the rollout engine, for its rounds.
        model: wrapper of the engine that runners clone.
        settings: how tasks are attempted.
        auxiliary_models: wrappers of further models for the workflows.
        completer: adds to the experiences of a run what the advantage function asks for.
        place: where runners with processes of their own are started; None: runners are threads of this one.
    """

    def __init__(
        self,
        engine: InferenceModel,
        model: ModelWrapper,
        *,
        settings: SchedulerSettings,
        auxiliary_models: Sequence[ModelWrapper] = (),
        completer: InputCompleter | None = None,
        place: RunnerPlace | None = None,
    ) -> None:
        self._engine = engine
        self._model = model
        self.auxiliary_models = tuple(auxiliary_models)
        self._completer = completer
        self._place = place
        self._settings = settings
        self.times = AttemptTimes(settings.max_timeout, settings.dynamic_timeout)
        self._runners = [self._new_runner(f"runner_{i:04d}") for i in range(settings.num_runners)]
        self._lanes: dict[str, list[Runner]] = {}
        self._pool = RunnerPool(self._runners)
        self._numbers = itertools.count()
        self._alone = asyncio.Lock()
        self._under_way = 0
        self._in_turn: set[type[Any]] = set()
        self._reports: asyncio.Task[None] | None = None
        if settings.is_deterministic and settings.concurrent_mode != "sequential":
            logger.warning(
                "explorer.concurrent_mode %s has no effect with deterministic: true; the rollouts of a task "
                "run one after another",
                settings.concurrent_mode,
            )

    async def prepare(self) -> None:
        """Make all runners ready together.

        Raises:
            WorkflowError: the process of a runner did not start (E5634).
        """
        await all_or_none([runner.prepare() for runner in self._runners])

    async def schedule(
        self, tasks: Sequence[Task], *, batch: int | str, with_baseline: bool = False, first: int = 0
    ) -> BatchResult:
        """Return the outcomes of all runs of all tasks.

        Batches may overlap: the older one gets the next idle runner.

        Args:
            tasks: the tasks; `repeat_times` of each is the number of its runs.
            batch: first part of the ids: the explore step, or `<step>/<taskset>` in an evaluation.
            with_baseline: one more run of each task, numbered after the others, with temperature 0.
            first: number of the first task in the batch.

        Raises:
            OutOfMemoryError: the engine ran out of memory.
        """
        started = time.monotonic()
        result = BatchResult(len(tasks), baselines={} if with_baseline else None)
        parts = self._split(tasks, batch, first=first)
        result.issued_run_count = _num_runs(parts)
        if with_baseline:
            parts += self._baselines(tasks, batch, first=first)
        progress = BatchProgress(part.index for part in parts)
        for runner in self._all_runners():
            runner.start_batch()
        is_training = not any(task.is_eval for task in tasks)
        rule = self._settings.over_rollout if is_training else None
        with self._reported():
            if self._settings.is_deterministic:
                async with self._alone:
                    await self._in_places(parts, result, progress)
            else:
                await self._shared(parts, result, progress, rule)
        if rule is not None:
            _leave_behind(result, parts, progress.unfinished, keeps_parts=rule.return_partial_tasks)
        if is_training:
            self.times.end_batch()
        result.results.sort(key=lambda r: (r.task, r.run))
        result.wall_s = time.monotonic() - started
        return result

    async def attempt(self, task: Task, *, batch: int | str, index: int, with_baseline: bool = False) -> BatchResult:
        """Return the outcomes of a task's rollouts; it belongs to no step.

        Tasks may overlap: the older one gets the next idle runner.

        Args:
            task: see `schedule`.
            batch: first part of the ids.
            index: of the task, the second part.
            with_baseline: see `schedule`.

        Raises:
            OutOfMemoryError: the engine ran out of memory.
        """
        result = BatchResult(1, baselines={} if with_baseline else None)
        parts = self._split([task], batch, first=index)
        result.issued_run_count = _num_runs(parts)
        if with_baseline:
            parts += self._baselines([task], batch, first=index)
        with self._reported():
            await self._shared(parts, result, BatchProgress(part.index for part in parts), None)
        result.results.sort(key=lambda r: (r.task, r.run))
        return result

    def end_step(self) -> None:
        """Count a step of tasks that were attempted one by one."""
        for runner in self._all_runners():
            runner.start_batch()
        self.times.end_batch()

    def close(self) -> None:
        """Let the threads and processes of all runners end; wait for none."""
        for runner in self._all_runners():
            runner.close()
        for model in (self._model, *self.auxiliary_models):
            model.close()
        if self._place is not None:
            self._place.close()

    def _split(self, tasks: Sequence[Task], batch: int | str, *, first: int = 0) -> list[_Part]:
        parts = []
        most = self._settings.max_repeat_times_per_runner
        for index, task in enumerate(tasks, first):
            traits = describe(task.workflow)
            repeats = task.repeat_times or 1
            task = of_batch(task, batch=batch, index=index)
            for start in range(0, repeats, most or repeats):
                runs = range(start, min(repeats, start + (most or repeats)))
                parts.append(_Part(task, index, runs, traits.can_repeat))
        return parts

    def _baselines(self, tasks: Sequence[Task], batch: int | str, *, first: int = 0) -> list[_Part]:
        parts = []
        for index, task in enumerate(tasks, first):
            run = task.repeat_times or 1
            can_repeat = describe(task.workflow).can_repeat
            task = of_batch(task, batch=batch, index=index)
            parts.append(_Part(task, index, range(run, run + 1), can_repeat, is_baseline=True))
        return parts

    async def _in_places(self, parts: list[_Part], result: BatchResult, progress: BatchProgress) -> None:
        """Run the parts, each on its assigned runner.

        The runners synchronize in the engine's rounds.
        """
        busy = min(self._settings.num_runners, len(parts))
        runners = self._runners[:busy]
        for runner in runners:
            await self._engine.join_round(runner.participant)

        async def work(place: int, runner: Runner) -> None:
            try:
                for part in parts[place::busy]:
                    await self._do(runner, part, result)
                    progress.done(part.index)
            finally:
                await self._engine.leave_round(runner.participant)

        await all_or_none([work(place, runner) for place, runner in enumerate(runners)])

    async def _shared(
        self, parts: list[_Part], result: BatchResult, progress: BatchProgress, rule: OverRollout | None
    ) -> None:
        """Do the parts, each on the next runner that is idle."""
        queue, number = deque(parts), next(self._numbers)

        async def work() -> None:
            while queue:
                async with self._pool.acquired(number) as runner:
                    if not queue:
                        return
                    part = queue.popleft()
                    await self._do(runner, part, result)
                    progress.done(part.index)

        count = min(self._settings.num_runners, len(parts))
        until = None if rule is None else progress.enough(rule)
        await all_or_none([work() for _ in range(count)], until=until)

    async def _do(self, runner: Runner, part: _Part, result: BatchResult) -> None:
        if part.can_repeat:
            await self._attempts(runner, part, part.runs, result)
            return
        singles = [range(run, run + 1) for run in part.runs]
        if not self._are_at_once(part.task.workflow):
            for runs in singles:
                await self._attempts(runner, part, runs, result)
            return
        lanes = self._lanes_of(runner, len(singles))
        await all_or_none([self._attempts(lane, part, runs, result) for lane, runs in zip(lanes, singles, strict=True)])

    def _are_at_once(self, workflow: type[Any]) -> bool:
        """Return whether rollouts of a task overlap, one call for each."""
        mode = self._settings.concurrent_mode
        if mode == "sequential" or self._settings.is_deterministic:
            return False
        if mode == "multi-threading" or describe(workflow).is_async:
            return True
        if workflow not in self._in_turn:
            self._in_turn.add(workflow)
            logger.warning(
                "explorer.concurrent_mode is asynchronous and the workflow %s is not, so that the rollouts "
                "of a task run one after another; write multi-threading, or give the workflow is_async = "
                "True and run_async",
                workflow.__name__,
            )
        return False

    async def _attempts(self, runner: Runner, part: _Part, runs: range, result: BatchResult) -> None:
        """Attempt `runs` until the outcomes need no retry.

        There are at most `max_retry_times` + 1 attempts.
        """
        for attempt in range(self._settings.max_retry_times + 1):
            result.retry_count += attempt > 0
            participant, abandoned, restarts = runner.participant, runner.abandoned_count, runner.restart_count
            deadline_s = None if part.task.is_eval else self.times.deadline_s
            try:
                outcomes, seconds = await runner.attempt(
                    part.task, runs, is_greedy=part.is_baseline, timeout_s=deadline_s
                )
            finally:
                result.abandoned_count += runner.abandoned_count - abandoned
                result.restart_count += runner.restart_count - restarts
            if self._settings.is_deterministic and runner.participant != participant:
                await self._engine.join_round(runner.participant)
                await self._engine.leave_round(participant)
            if not is_retried(outcomes):
                break
        if not part.task.is_eval and any(isinstance(outcome, Completed) for outcome in outcomes):
            self.times.note(seconds)
        done = [RolloutResult(part.index, run, outcome, seconds) for run, outcome in zip(runs, outcomes, strict=True)]
        if part.is_baseline and result.baselines is not None:
            result.baselines[part.index] = done[0]
        else:
            result.results += done

    def _lanes_of(self, runner: Runner, count: int) -> list[Runner]:
        lanes = self._lanes.setdefault(runner.name, [runner])
        while len(lanes) < count:
            lanes.append(self._new_runner(f"{runner.name}.{len(lanes)}"))
        return lanes[:count]

    def _new_runner(self, name: str) -> Runner:
        deadlines: dict[str, Any] = {
            "max_timeout": self._settings.max_timeout,
            "is_waiting": self._engine.waits_in_round if self._settings.is_deterministic else None,
            "max_wait_s": self._model.timeout_s,
        }
        if self._place is not None:
            return ProcessRunner(name, self._place, completer=self._completer, **deadlines)
        return WorkflowRunner(
            name, self._model, auxiliary_models=self.auxiliary_models, completer=self._completer, **deadlines
        )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Log the state of every runner periodically during a batch.

        This does nothing unless the configuration asks for it.
        """
        self._under_way += 1
        interval_s = self._settings.report_interval_s
        if interval_s and self._reports is None:
            self._reports = asyncio.ensure_future(self._report_states(interval_s))
        try:
            yield
        finally:
            self._under_way -= 1
            if self._reports is not None and not self._under_way:
                self._reports.cancel()
                self._reports = None

    async def _report_states(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for runner in self._all_runners():
                logger.info("%s: %s", runner.name, runner.state)

    def _all_runners(self) -> list[Runner]:
        extra = [lane for lanes in self._lanes.values() for lane in lanes[1:]]
        return [*self._runners, *extra]


def _num_runs(parts: Sequence[_Part]) -> int:
    return sum(len(part.runs) for part in parts)


def _leave_behind(result: BatchResult, parts: Sequence[_Part], unfinished: set[int], *, keeps_parts: bool) -> None:
    """Remove the tasks that were not awaited from a result, and count them."""
    asked = _num_runs([part for part in parts if part.index in unfinished and not part.is_baseline])
    if not keeps_parts:
        result.results = [run for run in result.results if run.task not in unfinished]
    kept = sum(run.task in unfinished for run in result.results)
    result.unfinished_task_count, result.unfinished_run_count = len(unfinished), asked - kept
