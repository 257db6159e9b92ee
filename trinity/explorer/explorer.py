"""The rollout loop: weights, evaluation, tasks, rollouts, pipeline, store, one explore step after the other."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from trinity.common.constants import Mode, SyncStyle
from trinity.explorer.assembly import ExplorerParts, build_parts, experience_buffer, store_scope
from trinity.explorer.baseline import attach_baselines
from trinity.explorer.metrics import prefixed, rollout_metrics
from trinity.explorer.outcome import BatchResult
from trinity.explorer.overlap import explore_overlapped
from trinity.explorer.room import wait_for_room
from trinity.explorer.state import ExplorerState
from trinity.explorer.step_tasks import TASKSET, StepTasks
from trinity.explorer.updates import WeightUpdates, batches_at_once
from trinity.runtime.worker_thread import WorkerThread
from trinity.synchronizer.schedule import FixedSchedule, schedule_of
from trinity.synchronizer.served import ServedWeights, pull_weights
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.store import AppendResult, ExperienceStore
    from trinity.common.config import Config
    from trinity.common.experience import Experience
    from trinity.common.models.model import InferenceModel
    from trinity.common.workflows.task import Task
    from trinity.explorer.isolation.place import RunnerPlace
    from trinity.monitor.monitor import Monitor
    from trinity.synchronizer.base import Synchronizer

logger = get_logger("explorer")


@dataclass
class ExploreSummary:
    """What the explorer did.

    Attributes:
        step: the last finished explore step, over all processes of the job.
        experience_count: experiences appended by this process.
        evaluations: explore step -> metrics of the evaluations of this process.
    """

    step: int = 0
    experience_count: int = 0
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """What came of the tasks of an explore step.

    Attributes:
        result: outcomes of all runs.
        model_version: that the engine served when the step began.
        started: when that was, as `time.perf_counter()`.
        times: what the step waited for, as metrics.
    """

    result: BatchResult
    model_version: int
    started: float
    times: dict[str, float]


class Explorer:
    """Lets the model attempt tasks and hands over what happened.

    Args:
        config: resolved configuration of the stage.
        model: the rollout engine; serves the weights of the snapshot, or the initial ones.
        store: where experiences go.
        synchronizer: source of newer weights.
        monitor: metrics of the explorer.
        resume: checkpoint to continue from.
        auxiliary_models: engines of `explorer.auxiliary_models`; their weights stay as loaded.
        place: the processes of runners; None where runners are threads.
    """

    def __init__(
        self,
        config: Config,
        *,
        model: InferenceModel,
        store: ExperienceStore,
        synchronizer: Synchronizer,
        monitor: Monitor,
        resume: Path | None = None,
        auxiliary_models: Sequence[InferenceModel] = (),
        place: RunnerPlace | None = None,
    ) -> None:
        self.config = config
        self.engine = model
        self.auxiliary_models = tuple(auxiliary_models)
        self.place = place
        self.store = store
        self.synchronizer = synchronizer
        self.schedule = schedule_of(config)
        self.monitor = monitor
        self.state = ExplorerState() if resume is None else ExplorerState.load(resume)
        self.summary = ExploreSummary(step=self.state.explore_step)
        self._io = WorkerThread(f"{config.explorer.name}_io")
        self._producer = (experience_buffer(config), config.explorer.name)
        self._scope = store_scope(config)
        self._is_apart = config.mode == Mode.EXPLORE
        is_repeatable = config.deterministic and isinstance(self.schedule, FixedSchedule)
        self._is_exact = is_repeatable and not self._is_apart
        self._has_served = False
        self._parts: ExplorerParts | None = None
        self._times: dict[str, float] = {}
        self._served = ServedWeights(synchronizer, model, explorer=config.explorer.name)
        self._tasks: StepTasks | None = None
        self._updates = self._make_updates()

    def _make_updates(self) -> WeightUpdates | None:
        if isinstance(self.schedule, FixedSchedule):
            return None
        return WeightUpdates(
            self.config,
            self.schedule,
            served=self._served,
            store=self.store,
            synchronizer=self.synchronizer,
            call=self._io.call,
        )

    @property
    def parts(self) -> ExplorerParts:
        """Reader, scheduler, evaluator and pipeline; there after `prepare`."""
        assert self._parts is not None, "prepare() comes first"
        return self._parts

    async def prepare(self) -> None:
        """Open the readers, build the pipeline and the runners, and announce the producer.

        Raises:
            ConfigError: a name that no registry knows, or arguments that do not fit.
            DataError: a dataset that cannot be used.
        """
        os.environ.update(self.config.explorer.env_vars)
        await self._continue()
        parts = self._parts = await self._io.call(
            build_parts, self.config, self.engine, self.auxiliary_models, self.place
        )
        await parts.pipeline.prepare()
        await parts.scheduler.prepare()
        if self.state.readers:
            parts.reader.load_state_dict(self.state.readers[TASKSET])
        else:
            self.state.readers = {TASKSET: parts.reader.state_dict()}
        self._tasks = StepTasks(parts.reader, batch_size=self.config.buffer.batch_size, call=self._io.call)
        parts.pipeline.load_state_dict(self.state.pipeline)
        parts.scheduler.times.load_state_dict(self.state.times)
        self.monitor.truncate(self.state.monitor)
        await self._io.call(self.store.open_producer, *self._producer, **self._scope)
        await self._snapshot()

    async def _continue(self) -> None:
        """Go on after the last step in the log, where that is later than the checkpoint.

        A step of the log is not explored again, unless doing so gives the same bits: then its metrics, which a killed
        process may not have written, come again, too.
        """
        if self._is_exact:
            return
        text = await self._io.call(self.store.snapshot, *self._producer, **self._scope)
        state = None if text is None else ExplorerState.from_json(json.loads(text))
        if state is not None and (self._is_apart or state.explore_step > self.state.explore_step):
            self.state, self.summary.step = state, state.explore_step
            logger.info("%s: continuing from explore step %d", self.config.explorer.name, state.explore_step)

    @property
    def tasks(self) -> StepTasks:
        """The tasks of the steps; there after `prepare`."""
        assert self._tasks is not None, "prepare() comes first"
        return self._tasks

    @property
    def planned_steps(self) -> int | None:
        """Explore steps of the whole run; None for a taskset without an end."""
        buffer, reader = self.config.buffer, self.parts.reader
        if buffer.total_steps is not None:
            return int(buffer.total_steps)
        return -(-len(reader) * buffer.total_epochs // buffer.batch_size) if buffer.total_epochs else None

    async def explore(self) -> ExploreSummary:
        """Explore until the tasks or the steps are exhausted, or the trainer has finished; then evaluate.

        Raises:
            SyncError: weights did not come before `synchronizer.sync_timeout`.
            WorkflowError: no run was completed for several batches of tasks, or an operator failed.
        """
        if self._updates is not None and self.config.synchronizer.sync_style == SyncStyle.FULLY_ASYNC:
            await explore_overlapped(self, self._updates, limit=batches_at_once(self.config))
        else:
            await self._explore_in_turn()
        await self._io.call(self.store.close_producer, *self._producer, **self._scope)
        await self._finish()
        return self.summary

    async def _explore_in_turn(self) -> None:
        while True:
            step = self.state.explore_step + 1
            tasks = await self.read_tasks(step)
            if not tasks or not await self._serve(step):
                return
            if self.is_eval_due(step - 1):
                await self.evaluate(step - 1)
            rollout = await self.roll_out(step, tasks)
            if rollout is None:
                return
            await self.finish_step(step, rollout)

    async def close(self) -> None:
        """Release runners, pipeline and threads; a workflow that hangs is left behind."""
        if self._parts is not None:
            self._parts.scheduler.close()
            await self._parts.pipeline.close()
        self._io.close()

    # ------------------------------------------------------------------ one step
    async def read_tasks(self, step: int) -> list[Task]:
        """Return the tasks of explore step `step`; none at the end of the run."""
        total = self.config.buffer.total_steps
        if total is not None and step > total:
            return []
        return await self.tasks.read(step)

    async def _serve(self, step: int) -> bool:
        """Make the engine serve the version of `step`; return false if the trainer ended before it."""
        if self._updates is not None:
            return bool(await self._updates.admit(step))
        if self._is_apart:
            return await self._serve_newest(step)
        assert isinstance(self.schedule, FixedSchedule), "without updates the schedule says which version serves"
        version = self.schedule.version_for(step)
        if version <= self.engine.model_version:
            return True
        started = time.perf_counter()
        await self._io.call(self.store.announce_wait, *self._producer, version, **self._scope)
        newest = await self.synchronizer.wait_for_version(version, timeout_s=self.config.synchronizer.sync_timeout)
        if newest < version:
            logger.info("the trainer has finished with version %d: no explore step %d", newest, step)
            return False
        self._times = {"time/wait_weight": time.perf_counter() - started}
        self._times |= await pull_weights(self.synchronizer, self.engine, version)
        return True

    async def _serve_newest(self, step: int) -> bool:
        """At a point of synchronisation, serve the newest version, which is old enough to wait for only in need.

        The points are those of the schedule, and the first step of this process. Returns false at the trainer's end.
        """
        is_first, self._has_served = not self._has_served, True
        synchronizer = self.synchronizer
        if is_first or cast("FixedSchedule", self.schedule).is_sync_point(step):
            started = time.perf_counter()
            required = await synchronizer.required_version()
            if await synchronizer.newest_version() < required:
                await self._io.call(self.store.announce_wait, *self._producer, required, **self._scope)
                await synchronizer.wait_for_version(required, timeout_s=self.config.synchronizer.sync_timeout)
            self._times = {"time/wait_weight": time.perf_counter() - started}
            self._times |= await self._served.take_newest()
        if await synchronizer.is_trainer_finished():
            logger.info("the trainer has finished: no explore step %d", step)
            return False
        return True

    async def roll_out(self, step: int, tasks: list[Task]) -> Rollout | None:
        """Let the model attempt the tasks of explore step `step`; `finish_step` takes what came of it.

        Tasks of which no run is completed are replaced by the next ones; None if they were the last.

        Raises:
            WorkflowError: no run was completed for several batches of tasks (E5130).
        """
        started, version, times = time.perf_counter(), self.engine.model_version, self._pop_times()
        num_empty = 0
        while True:
            result = await self.parts.scheduler.schedule(
                tasks, batch=self._batch(step), with_baseline=self.parts.needs.baseline
            )
            if result.finished_tasks:
                return Rollout(result, version, started, times | {"rollout/empty_batch_count": num_empty})
            num_empty, is_first = num_empty + 1, not self.state.explore_step
            tasks = await self.tasks.replace(step, result, num_empty=num_empty, is_first=is_first)
            if not tasks:
                return None

    async def finish_step(self, step: int, rollout: Rollout) -> None:
        """Process and store the experiences of explore step `step`, log it, and report it as finished."""
        result = rollout.result
        metrics = rollout_metrics(result) | attach_baselines(result)
        metrics["rollout/model_version"] = rollout.model_version
        experiences, own = await self.parts.pipeline.process(result.experiences)
        metrics |= prefixed("experience_pipeline", own)
        metrics["time/wait_room"] = await self._wait_for_room()
        metrics |= prefixed("perf/engine", await self.engine.stats())
        self.state.explore_step = step
        self.state.readers = self.tasks.finish(step)
        # Nothing is waited for from here to the report: a checkpoint with this step's rows must know that it is done.
        appended = await self._append(step, experiences)
        if appended.duplicates:
            logger.info("explore step %d was in the store already: it stays as it is", step)
        metrics["experience_pipeline/oversize_count"] = appended.quarantined
        metrics["time/wait_explore_step"] = result.wall_s
        metrics["time/explore_step"] = time.perf_counter() - rollout.started
        self.monitor.log(metrics | rollout.times, step=step)
        failpoint("explore.after_rollout")
        self.summary.step = step
        self.summary.experience_count += appended.appended
        await self._snapshot()

    def _batch(self, step: int) -> int | str:
        """Return the first part of the step's ids; several explorers of a job count their steps each."""
        return f"{self.config.explorer.name}/{step}" if self._is_apart else step

    async def _wait_for_room(self) -> float:
        return await wait_for_room(
            self.store,
            self._producer,
            self._scope,
            io=self._io,
            synchronizer=self.synchronizer,
            timeout_s=self.config.synchronizer.sync_timeout,
        )

    async def _append(self, step: int, experiences: list[Experience]) -> AppendResult:
        """Store a step's experiences, and with them where the explorer stands after the step."""
        self._note_place()
        self.state.monitor["lines"] += 1  # the line of this step, which comes next
        buffer, producer = self._producer
        return await self._io.call(
            self.store.append,
            buffer,
            experiences,
            producer=producer,
            explore_step=step,
            snapshot=json.dumps(self.state.as_json()),
            **self._scope,
        )

    def _note_place(self) -> None:
        self.state.model_version = self.engine.model_version
        self.state.pipeline = self.parts.pipeline.state_dict()
        if self.config.explorer.dynamic_timeout.enable:
            self.state.times = self.parts.scheduler.times.state_dict()
        self.state.monitor = dict(self.monitor.state_dict())

    async def _snapshot(self) -> None:
        self._note_place()
        await self.synchronizer.report_explorer(self.state.as_json(), explorer=self.config.explorer.name)

    # ---------------------------------------------------------------- evaluation
    def is_eval_due(self, step: int) -> bool:
        """Return whether the model that has explored `step` steps is to be evaluated now."""
        if not self.parts.evaluator.tasksets or step in self.state.eval_steps:
            return False
        if step == 0:
            return self.config.explorer.eval_on_startup and self.engine.model_version == 0
        interval = self.config.explorer.eval_interval
        return interval is not None and step % interval == 0

    async def evaluate(self, step: int) -> None:
        """Evaluate the model that has explored `step` steps, log it, and report it."""
        metrics = await self.parts.evaluator.evaluate(step, must_complete=step == 0)
        self.monitor.log(metrics | {"eval/model_version": self.engine.model_version}, step=step)
        self.summary.evaluations[step] = metrics
        self.state.eval_steps.append(step)
        await self._snapshot()

    async def _finish(self) -> None:
        """Evaluate the trainer's last weights, once they are there."""
        step = self.state.explore_step
        is_due = self.parts.evaluator.tasksets and step not in self.state.eval_steps
        if is_due and self._is_apart:  # others may go on for long, and nobody waits for their end
            await self._served.take_newest()
            await self.evaluate(step)
        elif is_due and self.config.mode == Mode.BOTH:
            version = await self.synchronizer.wait_for_trainer(timeout_s=self.config.synchronizer.sync_timeout)
            if version > self.engine.model_version:
                await pull_weights(self.synchronizer, self.engine, version)
            await self.evaluate(step)
        await self.synchronizer.finish_explorer()

    def _pop_times(self) -> dict[str, float]:
        times, self._times = self._times, {}
        if self._updates is not None:
            times, self._updates.times = times | self._updates.times, {}
        return times
