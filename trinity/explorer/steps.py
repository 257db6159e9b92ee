"""Explore steps: tasks, rollouts, pipeline, store and evaluations."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from trinity.common.constants import Mode
from trinity.explorer.assembly import ExplorerParts
from trinity.explorer.backpressure import wait_for_room
from trinity.explorer.metrics import prefixed, rollout_metrics, taskset_metrics
from trinity.explorer.open_tasks import StreamedTasks
from trinity.explorer.outcome import BatchResult, joined
from trinity.explorer.refill import ProcessedStep, Refill
from trinity.explorer.state import ExplorerState
from trinity.explorer.step_tasks import StepTasks
from trinity.explorer.summary import ExploreSummary
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.store import AppendResult
    from trinity.common.config import Config
    from trinity.common.workflows.task import Task
    from trinity.explorer.open_tasks import Name
    from trinity.explorer.producer import Producer
    from trinity.monitor.monitor import Monitor
    from trinity.synchronizer.served import ServedWeights

logger = get_logger("explorer")


@dataclass(frozen=True)
class ExploredBatch:
    """Results of the tasks of an explore step.

    Attributes:
        result: outcomes of all runs.
        model_version: that the engine served when the step began.
        started: when that was, as `time.perf_counter()`.
        times: what the step waited for, as metrics.
        lost: what happened to the rollouts of tasks that others have replaced, by fate.
    """

    result: BatchResult
    model_version: int
    started: float
    times: dict[str, float]
    lost: Counter[str] = field(default_factory=Counter)


class ExploreSteps:
    """What happens in an explore step; `loops` says when.

    Args:
        config: resolved configuration of the stage.
        parts: reader, scheduler, evaluator and pipeline.
        tasks: of the steps.
        served: the engine and what it serves.
        producer: the explorer in the store.
        monitor: metrics of the explorer.
        state: where the explorer stands; kept up.

    Attributes:
        summary: what was done.
    """

    def __init__(
        self,
        config: Config,
        *,
        parts: ExplorerParts,
        tasks: StepTasks,
        served: ServedWeights,
        producer: Producer,
        monitor: Monitor,
        state: ExplorerState,
    ) -> None:
        self.state = state
        self.summary = ExploreSummary(step=state.explore_step)
        self._config = config
        self._parts = parts
        self._tasks = tasks
        self._served = served
        self._producer = producer
        self._monitor = monitor
        most = config.data_processor.experience_pipeline.max_refill_batches * config.buffer.batch_size
        self._refill = Refill(parts.pipeline, max_tasks=most)

    async def read_tasks(self, step: int) -> list[Task]:
        """Return the tasks of explore step `step`; none at the end of the run."""
        total = self._config.buffer.total_steps
        if total is not None and step > total:
            return []
        return await self._tasks.read(step)

    @property
    def streamed(self) -> StreamedTasks:
        """The tasks, where they begin one by one."""
        assert isinstance(self._tasks, StreamedTasks), "`explorer` makes them for the loop that asks"
        return self._tasks

    @property
    def model_version(self) -> int:
        """The version that the engine serves."""
        return self._served.engine.model_version

    async def read_ahead(self, step: int) -> bool:
        """Read the tasks of `step` ahead; False at the end of the run."""
        total = self._config.buffer.total_steps
        return (total is None or step <= total) and await self.streamed.read_ahead()

    async def roll_out(self, step: int, tasks: list[Task]) -> ExploredBatch | None:
        """Run the rollouts of explore step `step`.

        `finish_step` takes the result.

        Tasks of which no run is completed are replaced by the next ones; None if they were the last.

        Raises:
            WorkflowError: no run was completed for several batches of tasks (E5130).
        """
        started, version, times = time.perf_counter(), self._served.engine.model_version, self._served.pop_times()
        num_empty, lost = 0, Counter[str]()
        while True:
            result = await self._parts.scheduler.schedule(
                tasks, batch=self._batch(step), with_baseline=self._parts.needs.baseline
            )
            if result.finished_tasks:
                times |= {"rollout/empty_batch_count": num_empty}
                return ExploredBatch(result, version, started, times, lost)
            lost += result.fates
            num_empty, is_first = num_empty + 1, not self.state.explore_step
            tasks = await self._tasks.replace(step, result, num_empty=num_empty, is_first=is_first)
            if not tasks:
                return None

    async def roll_out_task(self, task: Task, *, name: Name) -> BatchResult:
        """Run the rollouts of one task, whose ids have its name."""
        number, place = name
        return await self._parts.scheduler.attempt(
            task, batch=self._batch(number), index=place, with_baseline=self._parts.needs.baseline
        )

    def gather(self, results: list[BatchResult], *, model_version: int, started: float) -> ExploredBatch:
        """Return the results of single tasks as those of a step.

        `finish_step` takes them.

        Args:
            results: of the tasks of the step.
            model_version: the oldest that one of them began with.
            started: end of the step before, as `time.perf_counter()`.
        """
        self._parts.scheduler.end_step()
        whole = joined(results)
        whole.wall_s = time.perf_counter() - started
        return ExploredBatch(whole, model_version, started, self._served.pop_times())

    async def finish_step(self, step: int, rollout: ExploredBatch) -> None:
        """Process and store the experiences of explore step `step`.

        Then log the step and report it as finished.
        """
        done = await self._refill.process(
            rollout.result, further=partial(self._roll_out_more, step), feedback=self._tasks.feedback
        )
        is_detailed = self._config.monitor.detailed_stats
        metrics = rollout_metrics(done.result, is_detailed=is_detailed) | done.baselines
        readers = self._parts.reader.by_number
        if len(readers) > 1:
            names = {number: reader.config.name for number, reader in readers.items()}
            metrics |= taskset_metrics(done.result, names, is_detailed=is_detailed)
        metrics["rollout/model_version"] = rollout.model_version
        metrics |= prefixed("experience_pipeline", done.metrics)
        metrics["time/wait_room"] = await wait_for_room(
            self._producer, self._served.synchronizer, timeout_s=self._config.synchronizer.sync_timeout
        )
        metrics |= prefixed("perf/engine", await self._served.engine.stats())
        self.state.explore_step = step
        self.state.readers = self._tasks.finish(step)
        # Between the append and the report nothing is waited for: a checkpoint with this step's rows must know that it
        # is done.
        appended = await self._append(step, done, done.counts + rollout.lost)
        if appended.duplicates:
            logger.info("explore step %d is stored already: it is kept as it is", step)
        metrics["experience_pipeline/oversize_count"] = appended.quarantined
        metrics |= appended.fates.metrics()
        metrics["time/wait_explore_step"] = done.result.wall_s
        metrics["time/explore_step"] = time.perf_counter() - rollout.started
        self._monitor.log(metrics | rollout.times, step=step)
        failpoint("explore.after_rollout")
        self.summary.step = step
        self.summary.experience_count += appended.appended
        await self.report()

    def _batch(self, step: int) -> int | str:
        """Return the prefix of the step's ids.

        It tells apart the explorers of a job, which count their steps separately.
        """
        return f"{self._producer.name}/{step}" if self._config.mode == Mode.EXPLORE else step

    async def _roll_out_more(self, step: int, number: int, first: int) -> BatchResult | None:
        """Run the rollouts of further tasks of a step; None where there are none."""
        batch, tasks = await self._tasks.more(step, number)
        if not tasks:
            return None
        result = await self._parts.scheduler.schedule(
            tasks, batch=self._batch(batch), first=first, with_baseline=self._parts.needs.baseline
        )
        failpoint("explore.while_refilling")
        return result

    async def _append(self, step: int, done: ProcessedStep, counts: Counter[str]) -> AppendResult:
        """Store a step's experiences and the explorer's snapshot after it."""
        self._note_place()
        self.state.monitor["lines"] += 1  # the line of this step, which comes next
        snapshot = json.dumps(self.state.as_json())
        return await self._producer.append(
            done.experiences, explore_step=step, snapshot=snapshot, counts=counts, came=done.result.experiences
        )

    def _note_place(self) -> None:
        self.state.model_version = self._served.engine.model_version
        self.state.pipeline = self._parts.pipeline.state_dict()
        if self._config.explorer.dynamic_timeout.enable:
            self.state.times = self._parts.scheduler.times.state_dict()
        self.state.monitor = dict(self._monitor.state_dict())

    async def report(self) -> None:
        """Tell the synchronizer where the explorer stands."""
        self._note_place()
        await self._served.synchronizer.report_explorer(self.state.as_json(), explorer=self._producer.name)

    # --------------------------------------------------------------- evaluation
    def is_eval_due(self, step: int) -> bool:
        """Return whether to evaluate the model after `step` explored steps."""
        if not self._parts.evaluator.tasksets or step in self.state.eval_steps:
            return False
        if step == 0:
            return self._config.explorer.eval_on_startup and self._served.engine.model_version == 0
        interval = self._config.explorer.eval_interval
        return interval is not None and step % interval == 0

    async def evaluate(self, step: int) -> None:
        """Evaluate the model after `step` explored steps; log and report it."""
        metrics = await self._parts.evaluator.evaluate(step, must_complete=step == 0)
        self._monitor.log(metrics | {"eval/model_version": self._served.engine.model_version}, step=step)
        self.summary.evaluations[step] = metrics
        self.state.eval_steps.append(step)
        await self.report()
