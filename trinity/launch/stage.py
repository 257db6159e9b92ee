"""One stage: its components, their life, and what is left when it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.checkpoint import CheckpointStore
from trinity.common.constants import Mode, StorageType
from trinity.common.errors import ExitCode
from trinity.launch.stop import StopSignal
from trinity.monitor.monitor import Monitor
from trinity.runtime.event_loop import LoopWatch
from trinity.synchronizer.schedule import schedule_of
from trinity.synchronizer.synchronizer import Synchronizer
from trinity.utils.log import get_logger, logged_to_file

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.common.config import Config
    from trinity.common.models.model import InferenceModel
    from trinity.explorer.explorer import Explorer
    from trinity.trainer.trainer import Trainer

logger = get_logger("launch")

LOOP_GRACE_S = 10.0

MetricsListener = Callable[[str, int, Mapping[str, float]], None]


@dataclass
class StageResult:
    """What a stage did.

    Attributes:
        name: stage name, `None` for a run without stages.
        job_dir: folder with checkpoints, metrics and logs.
        seconds: wall time of this process in the stage.
        training_step: last training step.
        explore_step: last explore step.
        is_resumed: whether it continued from a checkpoint.
        stopped: exit code of the signal that stopped it, if one did.
    """

    name: str | None
    job_dir: Path
    seconds: float = 0.0
    training_step: int = 0
    explore_step: int = 0
    is_resumed: bool = False
    stopped: ExitCode | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Stage:
    """Builds the components of one stage in this process, runs them to their end, and closes them.

    Args:
        config: resolved configuration of the stage.
        name: stage name.
        stop: the signal context of the process.
        on_metrics: called with actor name, step and values of every logged line.
    """

    def __init__(
        self, config: Config, *, name: str | None, stop: StopSignal, on_metrics: MetricsListener | None = None
    ) -> None:
        self.config = config
        self.name = name
        self.stop = stop
        self.on_metrics = on_metrics
        self.job_dir = Path(config.checkpoint_job_dir)
        self._monitors: list[Monitor] = []

    async def run(self) -> StageResult:
        """Run the stage; return what it did.

        Raises:
            TrinityError: the first failure of a component, after the others were ended.
        """
        started = time.monotonic()
        checkpoints = CheckpointStore(self.job_dir)
        checkpoints.clean()
        resume = checkpoints.latest() if self.config.continue_from_checkpoint else None
        result = StageResult(self.name, self.job_dir, is_resumed=resume is not None)
        logs = self.job_dir / "log"
        try:
            with (
                logged_to_file("", logs / "run.log"),
                logged_to_file("explorer", logs / f"{self.config.explorer.name}.log"),
                logged_to_file("trainer", logs / f"{self.config.trainer.name}.log"),
            ):
                if self.config.mode == Mode.TRAIN:
                    await self._train_only(resume, result)
                else:
                    await self._explore_and_train(resume, result)
        finally:
            self.stop.on_stop(None)
            for monitor in self._monitors:
                monitor.close()
            result.seconds = time.monotonic() - started
        result.stopped = self.stop.code
        return result

    # ------------------------------------------------------------------- modes
    async def _train_only(self, resume: Path | None, result: StageResult) -> None:
        from trinity.buffer.buffer import open_store

        synchronizer = self._synchronizer()
        buffer = self.config.buffer.trainer_input.experience_buffer
        reads_dataset = buffer is not None and buffer.storage_type == StorageType.FILE
        store = None if reads_dataset else open_store(self.config)
        trainer = self._trainer(store, synchronizer, resume)
        try:
            await trainer.prepare()
            self._stop_with(trainer, None)
            summary = await trainer.train()
            result.training_step = summary.step
        finally:
            await trainer.close()
            if store is not None:
                store.close()

    async def _explore_and_train(self, resume: Path | None, result: StageResult) -> None:
        from trinity.buffer.buffer import open_store
        from trinity.common.models import create_auxiliary_models, create_inference_model

        synchronizer = self._synchronizer()
        store = open_store(self.config)
        engine = create_inference_model(self.config)
        engines = [engine, *create_auxiliary_models(self.config)]
        explorer = self._explorer(engines, store, synchronizer, resume)
        trainer = self._trainer(store, synchronizer, resume)
        try:
            for each in engines:
                await each.prepare()
            await self._serve_adapter(engine)
            await explorer.prepare()
            await trainer.prepare(explore_steps=explorer.planned_steps)
            if resume is not None:
                await self._restore(resume, trainer)
            exploring = asyncio.create_task(explorer.explore(), name=self.config.explorer.name)
            training = asyncio.create_task(trainer.train(), name=self.config.trainer.name)
            self._stop_with(trainer, exploring)
            with self._loop_watch():
                await self._join(exploring, training)
            if not exploring.cancelled():
                result.explore_step = exploring.result().step
            result.training_step = training.result().step
            self._tell_untrained(store)
        except BaseException:
            await self._close(explorer, trainer, engines, store, is_failing=True)
            raise
        await self._close(explorer, trainer, engines, store, is_failing=False)

    def _tell_untrained(self, store: ExperienceStore) -> None:
        """Warn of experiences that nobody trained on, so that none is left out silently."""
        from trinity.explorer.assembly import experience_buffer, store_scope

        if self.stop.code is not None:
            return
        counts = store.counts(experience_buffer(self.config), **store_scope(self.config))
        left = counts["ready"] + counts["claimed"]
        if left:
            logger.warning(
                "%d of %d experiences were explored and not trained: the planned steps ended before; raise "
                "buffer.train_batch_size (now %s) or trainer.total_steps",
                left,
                left + counts["trained"],
                self.config.buffer.train_batch_size,
            )

    async def _close(
        self,
        explorer: Explorer,
        trainer: Trainer,
        engines: Sequence[InferenceModel],
        store: ExperienceStore,
        *,
        is_failing: bool,
    ) -> None:
        """Close every component, whatever the others do.

        Raises:
            Exception: the first failure of a component to close, unless an earlier failure `is_failing` the run.
        """
        first: Exception | None = None
        for close in (explorer.close, trainer.close, *(engine.shutdown for engine in engines)):
            try:
                await close()
            except Exception as error:  # noqa: BLE001  plugins are closed here; the others must be closed all the same
                logger.warning("%s failed: %s", close.__qualname__, error)
                first = first or error
        store.close()
        if first is not None and not is_failing:
            raise first

    async def _restore(self, resume: Path, trainer: Trainer) -> None:
        """Give the synchronizer the versions that the explorer can ask for, as at the checkpoint."""
        from trinity.explorer.state import ExplorerState

        await trainer.restore_versions(ExplorerState.load(resume).as_json())

    async def _serve_adapter(self, engine: InferenceModel) -> None:
        """Give the engine, as version 0, the model with the existing adapter from which training starts."""
        if all(adapter.path is None for adapter in self.config.model.lora_configs or ()):
            return
        from trinity.trainer.verl.loading import initial_weights

        await engine.update_weights(await asyncio.to_thread(initial_weights, self.config), version=0)

    async def _join(self, exploring: asyncio.Task[Any], training: asyncio.Task[Any]) -> None:
        """Wait for both loops; when one fails, end the other and raise the first failure."""
        pair = (exploring, training)
        await asyncio.wait(pair, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in pair if task.done() and not task.cancelled() and task.exception() is not None]
        if not failed:
            await asyncio.wait(pair)
            failed = [task for task in pair if not task.cancelled() and task.exception() is not None]
        for task in pair:
            task.cancel()
        await asyncio.gather(*pair, return_exceptions=True)
        for task in failed:
            error = task.exception()
            if error is not None:
                raise error

    def _loop_watch(self) -> LoopWatch:
        """Return the watch over asynchronous workflows that block: the deadline of an attempt is kept by the loop."""
        limit_s = self.config.explorer.max_timeout
        return LoopWatch(limit_s + LOOP_GRACE_S, what=f"explorer.max_timeout {limit_s:g} s and {LOOP_GRACE_S:g} s")

    # -------------------------------------------------------------- components
    def _monitor(self, actor: str) -> Monitor:
        config = self.config
        monitor = Monitor(
            self.job_dir,
            project=config.project,
            name=config.name,
            actor=actor,
            monitor_type=config.monitor.monitor_type,
            monitor_args=config.monitor.monitor_args,
            listener=self.on_metrics,
        )
        self._monitors.append(monitor)
        return monitor

    def _synchronizer(self) -> Synchronizer:
        return Synchronizer(schedule_of(self.config), timeout_s=self.config.synchronizer.sync_timeout)

    def _explorer(
        self,
        engines: Sequence[InferenceModel],
        store: ExperienceStore,
        synchronizer: Synchronizer,
        resume: Path | None,
    ) -> Explorer:
        """Return the explorer over the rollout model's engine, the first, and those of the auxiliary models."""
        from trinity.explorer.explorer import Explorer

        return Explorer(
            self.config,
            model=engines[0],
            auxiliary_models=engines[1:],
            store=store,
            synchronizer=synchronizer,
            monitor=self._monitor(self.config.explorer.name),
            resume=resume,
        )

    def _trainer(self, store: ExperienceStore | None, synchronizer: Synchronizer, resume: Path | None) -> Trainer:
        from trinity.trainer.trainer import Trainer

        return Trainer(
            self.config,
            store=store,
            synchronizer=synchronizer,
            monitor=self._monitor(self.config.trainer.name),
            resume=resume,
        )

    def _stop_with(self, trainer: Trainer, exploring: asyncio.Task[Any] | None) -> None:
        """Let a signal abandon the rollout under way and end training after its step."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            if exploring is not None:
                exploring.cancel()
            trainer.request_stop()

        def end_soon() -> None:
            loop.call_soon_threadsafe(end)

        self.stop.on_stop(end_soon)
