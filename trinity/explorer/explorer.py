"""The rollout loop.

Each explore step takes weights and tasks, runs rollouts and the pipeline, and stores the experiences. Evaluations run
between steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.constants import Mode, SyncStyle
from trinity.explorer.admission import is_streamed
from trinity.explorer.assembly import ExplorerParts, build_parts, experience_buffer, pipeline_input, store_scope
from trinity.explorer.loops import loop_of
from trinity.explorer.open_tasks import StreamedTasks
from trinity.explorer.producer import Producer
from trinity.explorer.state import ExplorerState
from trinity.explorer.step_tasks import TASKSET, StepTasks
from trinity.explorer.steps import ExploreSteps
from trinity.explorer.summary import ExploreSummary
from trinity.runtime.worker_thread import WorkerThread
from trinity.synchronizer.served import ServedWeights
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.buffer.task_mixture import TaskMixture
    from trinity.buffer.task_reader import TaskReader
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel
    from trinity.explorer.isolation.place import RunnerPlace
    from trinity.monitor.monitor import Monitor
    from trinity.synchronizer.base import Synchronizer

logger = get_logger("explorer")


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
        self.monitor = monitor
        self.state = ExplorerState() if resume is None else ExplorerState.load(resume)
        self._io = WorkerThread(f"{config.explorer.name}_io")
        name, buffer = config.explorer.name, experience_buffer(config)
        scope, inputs = store_scope(config), pipeline_input(config)
        self._producer = Producer(store, self._io.call, buffer=buffer, name=name, scope=scope, inputs=inputs)
        self._served = ServedWeights(synchronizer, model, explorer=name)
        self._is_apart = config.mode == Mode.EXPLORE
        self._explore_all = loop_of(config, served=self._served, producer=self._producer)
        self._parts: ExplorerParts | None = None
        self._steps: ExploreSteps | None = None

    @property
    def parts(self) -> ExplorerParts:
        """Reader, scheduler, evaluator and pipeline; there after `prepare`."""
        assert self._parts is not None, "prepare() comes first"
        return self._parts

    @property
    def steps(self) -> ExploreSteps:
        """What happens in a step, and what was done; there after `prepare`."""
        assert self._steps is not None, "prepare() comes first"
        return self._steps

    @property
    def summary(self) -> ExploreSummary:
        """What was done; there after `prepare`."""
        return self.steps.summary

    async def prepare(self) -> None:
        """Open the readers and start pipeline, runners and producer.

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
        if not self.state.readers:
            if self.state.explore_step:  # a checkpoint of another program, which has no position of ours
                await self._io.call(parts.reader.read, self.state.explore_step * self.config.buffer.batch_size)
            self.state.readers = {TASKSET: parts.reader.state_dict()}
        self._compare_eval_rows(parts)
        parts.pipeline.load_state_dict(self.state.pipeline)
        parts.scheduler.times.load_state_dict(self.state.times)
        self.monitor.truncate(self.state.monitor)
        await self._producer.open()
        self._steps = ExploreSteps(
            self.config,
            parts=parts,
            tasks=await self._step_tasks(parts.reader),
            served=self._served,
            producer=self._producer,
            monitor=self.monitor,
            state=self.state,
        )
        await self._steps.report()

    def _compare_eval_rows(self, parts: ExplorerParts) -> None:
        """Say which evaluation tasksets have other rows than before."""
        now = {taskset.name: taskset.fingerprint for taskset in parts.evaluator.tasksets}
        before = self.state.eval_rows
        changed = [name for name, mark in now.items() if before.get(name, mark) != mark]
        if changed:
            logger.warning(
                "[%s] the rows of the evaluation tasksets %s changed since explore step %d: do not compare their "
                "metrics with those of earlier steps; restore the rows, or give them another name",
                "W4042", ", ".join(changed), self.state.explore_step,
            )  # fmt: skip
        self.state.eval_rows = before | now

    async def _step_tasks(self, reader: TaskReader | TaskMixture) -> StepTasks:
        """Return the tasks as the loop takes them, those of a snapshot first."""
        kind = StreamedTasks if is_streamed(self.config) else StepTasks
        tasks = kind(reader, batch_size=self.config.buffer.batch_size, call=self._io.call)
        await tasks.resume(self.state.readers, finished_step=self.state.explore_step)
        return tasks

    async def _continue(self) -> None:
        """Continue after the last logged step if the checkpoint is older.

        A step of the log is not explored again, unless the result is bitwise identical: then its metrics, which a
        killed process may not have written, come again, too.
        """
        is_repeatable = self.config.deterministic and self.config.synchronizer.sync_style == SyncStyle.FIXED
        if is_repeatable and not self._is_apart:
            return
        text = await self._producer.snapshot()
        state = None if text is None else ExplorerState.from_json(json.loads(text))
        if state is not None and (self._is_apart or state.explore_step > self.state.explore_step):
            self.state = state
            logger.info("%s: continuing from explore step %d", self.config.explorer.name, state.explore_step)

    @property
    def planned_steps(self) -> int | None:
        """Explore steps of the whole run; None for a taskset without an end."""
        buffer, reader = self.config.buffer, self.parts.reader
        if buffer.total_steps is not None:
            return int(buffer.total_steps)
        return -(-len(reader) * buffer.total_epochs // buffer.batch_size) if buffer.total_epochs else None

    async def explore(self) -> ExploreSummary:
        """Explore to the end, then evaluate.

        It ends when the tasks or the steps are exhausted, or when the trainer has finished.

        Raises:
            SyncError: weights did not come before `synchronizer.sync_timeout`.
            WorkflowError: no run was completed for several batches of tasks, or an operator failed.
        """
        await self._explore_all(self.steps)
        await self._producer.close()
        await self._finish()
        return self.summary

    async def close(self) -> None:
        """Release runners, pipeline and threads.

        A workflow that hangs is abandoned.
        """
        try:
            if self._parts is not None:
                self._parts.scheduler.close()
                await self._parts.pipeline.close()
            await self._producer.release()
        finally:
            await self._io.end()

    async def _finish(self) -> None:
        """Evaluate the trainer's last weights; wait for the trainer's end.

        An explorer that runs apart does not wait: it takes the newest published weights.
        """
        step, synchronizer = self.state.explore_step, self._served.synchronizer
        if self.parts.evaluator.tasksets and step not in self.state.eval_steps:
            if not self._is_apart:  # there others may continue for long, and nobody waits for their end
                await synchronizer.wait_for_trainer(timeout_s=self.config.synchronizer.sync_timeout)
            await self._served.take_newest()
            await self.steps.evaluate(step)
        await synchronizer.finish_explorer(explorer=self._producer.name)
