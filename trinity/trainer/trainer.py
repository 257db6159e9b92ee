"""The training loop: sample, train, commit, publish, save."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.algorithm import SampleStrategy
from trinity.algorithm.planning import planned_steps
from trinity.algorithm.sample_strategy.making import make_strategy, sample
from trinity.buffer.store import ExperienceStore
from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config
from trinity.common.config.resolved import schema_of
from trinity.common.constants import TRAINER, Mode, SyncMethod
from trinity.common.experience import Experience
from trinity.common.models.chat_template import load_tokenizer
from trinity.monitor import headline
from trinity.monitor.monitor import Monitor
from trinity.runtime.worker_thread import WorkerThread
from trinity.synchronizer.base import Synchronizer
from trinity.synchronizer.publisher import Publisher
from trinity.synchronizer.schedule import sync_schedule
from trinity.synchronizer.transport import transport_of
from trinity.trainer.auxiliary import open_auxiliary
from trinity.trainer.backend import TrainerBackend, run_on
from trinity.trainer.rank_group import backend_of
from trinity.trainer.source import BufferSource, DatasetSource, open_dataset
from trinity.trainer.state import (
    TrainerState,
    check_reference,
    read_served_weights,
    read_trainer_state,
    write_explorer_part,
)
from trinity.trainer.summary import TrainSummary
from trinity.trainer.uploads import CheckpointUploads
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.runtime.base import Runtime

logger = get_logger("trainer")

T = TypeVar("T")

JOIN_POLL_S = 0.5


class Trainer:
    """The training loop over a source, a back end and a synchronizer.

    Args:
        config: resolved configuration of the stage.
        store: the open experience store; None if the trainer reads a dataset.
        synchronizer: passes new weights to the explorer.
        monitor: records the metrics of the trainer.
        tokenizer: for datasets and for checkpoints; loaded from the model if not given.
        resume: checkpoint directory to continue from.
        runtime: starts the processes of several ranks, and holds weights for remote engines; None: all is local.
    """

    def __init__(
        self,
        config: Config,
        *,
        store: ExperienceStore | None,
        synchronizer: Synchronizer,
        monitor: Monitor,
        tokenizer: PreTrainedTokenizerBase | None = None,
        resume: Path | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.synchronizer = synchronizer
        self.schedule = sync_schedule(config)
        self.publisher = Publisher(
            synchronizer, transport_of(config, objects=None if runtime is None else runtime.objects)
        )
        self.monitor = monitor
        self.tokenizer = tokenizer
        self.resume = resume
        self.runtime = runtime
        self.step = 0
        self._num_tokens = 0
        self.run_name = f"{config.project}/{config.name}"
        self.checkpoints = CheckpointStore(Path(config.checkpoint_job_dir))
        self.uploads = CheckpointUploads.of(config)
        self._checkpoint: Path | None = resume
        self._saved: tuple[int, bool] | None = None
        self._stop = asyncio.Event()
        self._step_lock = asyncio.Lock()
        self._thread = WorkerThread(config.trainer.name)
        self._pending: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._backend: TrainerBackend | None = None
        self._source: BufferSource | DatasetSource | None = None
        self._strategy: SampleStrategy | None = None
        self._positions: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        self._total_steps: int | None = None

    # ------------------------------------------------------------------- set-up
    async def prepare(self, *, explore_steps: int | None = None) -> None:
        """Load model, data and, when resuming, the checkpoint.

        Args:
            explore_steps: explore steps that the explorer beside this trainer plans, for the learning-rate schedule.

        Raises:
            EnvironmentProblem: the model cannot be loaded.
            CheckpointError: the checkpoint does not fit.
            DataError: the dataset cannot be used.
        """
        state = None if self.resume is None else read_trainer_state(self.resume)
        await self._thread.call(self._prepare, state, explore_steps)
        self._backend = backend_of(self.config, tokenizer=self.tokenizer, runtime=self.runtime)
        await self._backend.prepare(self._total_steps)
        if state is not None and self.resume is not None:
            check_reference(state, self.backend.reference(), self.resume)
            await self._backend.load(self.resume)
        await self._thread.call(self.uploads.begin)
        # Without a checkpoint the run starts at step 0 and logs again what a killed process had logged.
        self.monitor.truncate({"lines": 0, "samples": 0} if state is None else state.monitor)

    def _prepare(self, state: TrainerState | None, explore_steps: int | None) -> None:
        config = self.config
        if self.tokenizer is None:
            self.tokenizer = load_tokenizer(config.model)
        self.step, self._num_tokens = (0, 0) if state is None else (state.step, state.num_tokens)
        source = self._open_source(state)
        batch_size = config.buffer.train_batch_size
        self._total_steps = planned_steps(config, explore_steps)
        if self._total_steps is None and isinstance(source, DatasetSource):
            self._total_steps = source.planned_steps(batch_size)
        self._strategy = self._make_strategy(source, batch_size)
        if state is not None and not state.begun_from:
            self._strategy.load_state_dict(state.sampler)
        self._positions = self._strategy.state_dict(), source.state_dict()

    def _make_strategy(self, source: BufferSource | DatasetSource, batch_size: int) -> SampleStrategy:
        config = self.config
        strategy = make_strategy(config, source, batch_size=batch_size)
        tokenizer = self.tokenizer or load_tokenizer(config.model)
        strategy.auxiliary = open_auxiliary(config, strategy.auxiliary_buffers(), tokenizer=tokenizer, cut=self.step)
        return strategy

    def _open_source(self, state: TrainerState | None) -> BufferSource | DatasetSource:
        config, buffer = self.config, self.config.buffer.trainer_input.experience_buffer
        if schema_of(config) == "experience":
            assert self.store is not None, "an algorithm that learns from rollouts needs the experience store"
            name = "experience_buffer" if buffer is None else buffer.name
            # Not the trainer's current name: after a rename it continues under the name that it began with.
            consumer = self.store.last_trainer(name, run=self.run_name) or TRAINER
            token = self.store.open_consumer(name, consumer, run=self.run_name, cut=self.step)
            timeout_s = 1800.0 if buffer is None else buffer.max_read_timeout
            self._source = BufferSource(self.store, token, timeout_s=timeout_s)
            return self._source
        reader = open_dataset(config, tokenizer=self.tokenizer or load_tokenizer(config.model), state=state)
        self._source = DatasetSource(reader, quarantine=Path(config.checkpoint_job_dir) / "buffer" / "quarantine")
        return self._source

    # --------------------------------------------------------------------- loop
    async def train(self) -> TrainSummary:
        """Train until steps or data run out or a stop is requested; then save.

        Raises:
            StarvedError: no experience came before `max_read_timeout`.
            OutOfMemoryError: with the memory table and the keys to change.
            NumericError: gradients were not finite in several steps in a row.
            SyncError: the explorer did not take new weights in time.
            CheckpointError: a checkpoint could not be written.
        """
        if self.schedule.is_fixed or not self._publishes():
            return await self._train()
        training = asyncio.ensure_future(self._train())
        answering = asyncio.ensure_future(
            self.publisher.publish_on_request(self._step_lock, step=lambda: self.step, weights=self.weights)
        )
        try:
            await asyncio.wait({training, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not training.done():
                answering.result()
            return training.result()
        finally:
            for task in (training, answering):
                task.cancel()
            await asyncio.gather(training, answering, return_exceptions=True)

    async def _train(self) -> TrainSummary:
        while not self._is_done():
            sampled = await self._sample()
            if sampled is None:
                break
            async with self._step_lock:
                await self._train_step(*sampled)
            if self._is_save_due():
                await self._save(is_last=False)
        async with self._step_lock:
            if self._publishes() and self.step > await self.synchronizer.newest_version():
                await self._publish()
        if self.step:
            await self._save(is_last=not self._stop.is_set())
        if self.config.mode == Mode.BOTH or self.is_complete:
            await self.synchronizer.finish_trainer()  # else a separate explorer waits for the resumed trainer
        await self._thread.call(self.uploads.finish, self._stop.is_set)
        return TrainSummary(self.step, self._checkpoint, self._stop.is_set(), self._metrics)

    async def restore_versions(self, explorer_state: dict[str, Any]) -> None:
        """Publish again the checkpoint's versions that the explorer may request."""
        assert self.resume is not None, "a run that begins has published nothing"
        weights: dict[int, Mapping[str, Tensor]] = dict(read_served_weights(self.resume))
        newest = self.schedule.newest_at(self.step)
        if newest == self.step:
            weights[self.step] = await self.weights()
        await self.publisher.restore(newest, explorer_state, explorer=self.config.explorer.name, weights=weights)

    def request_stop(self) -> None:
        """End the loop after the current step; end a wait for experiences now."""
        self._stop.set()

    async def close(self) -> None:
        """Release threads and ranks after a checkpoint that is being written."""
        await self._thread.end()
        if self._strategy is not None:
            self._strategy.close()
        if self._backend is not None:
            await self._backend.close()

    @property
    def backend(self) -> TrainerBackend:
        """The back end, available after `prepare`."""
        assert self._backend is not None, "prepare() comes first"
        return self._backend

    @property
    def total_steps(self) -> int | None:
        """Training steps of the run; None if only the data determine it."""
        return self._total_steps

    @property
    def is_complete(self) -> bool:
        """Whether all planned steps are trained and no stop was requested."""
        return not self._stop.is_set() and (self._total_steps is None or self.step >= self._total_steps)

    async def weights(self) -> Mapping[str, Tensor]:
        """Return the weights by Hugging Face name; the next step may change them."""
        return await self.backend.weights()

    def _is_done(self) -> bool:
        return self._stop.is_set() or (self._total_steps is not None and self.step >= self._total_steps)

    async def _sample(self) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]] | None:
        """Return the next batch, or None at the end or when a stop was requested."""
        assert self._strategy is not None and self._source is not None, "prepare() comes first"
        while True:
            sampled = await self._unless_stopped(sample(self._strategy, self.step + 1))
            if sampled is None or sampled[0] or not self._source.is_closed:
                return sampled
            if self._stop.is_set() or not await self.synchronizer.is_explorer_expected():
                return None
            await asyncio.sleep(JOIN_POLL_S)

    async def _publish(self) -> dict[str, float]:
        """Publish the current weights and return metrics; give up at a stop."""

        async def publish() -> dict[str, float]:
            return await self.publisher.publish(self.step, await self.weights())

        return await self._unless_stopped(publish()) or {}

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, or None as soon as a stop is requested."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if self._stop.is_set() or not working.done():
                working.cancel()
        return None if self._stop.is_set() else working.result()

    async def _train_step(
        self, experiences: list[Experience], metrics: dict[str, float], shown: list[dict[str, Any]]
    ) -> None:
        """Train, commit the rows to the ledger, publish the weights, and log."""
        assert self._strategy is not None and self._source is not None, "prepare() comes first"
        step = self.step + 1
        failpoint("train.before_step")
        metrics = metrics | self._source.metrics() | {"sample/experience_count": float(len(experiences))}
        if experiences:
            metrics |= await self.backend.train_step(experiences, step)
        else:
            logger.warning("training step %d: no experience was left to train on, the weights stay", step)
        self._num_tokens += int(metrics.get(headline.NUM_TOKENS, 0))
        metrics["perf/trained_tokens"] = float(self._num_tokens)
        failpoint("train.after_step")
        metrics |= await self._source.commit(step, [exp.eid.uid for exp in experiences])
        await self._strategy.commit(step, experiences)
        self.step = step
        # A read for the next step may be running when a checkpoint is written: save the positions of this step.
        self._positions = self._strategy.state_dict(), self._source.state_dict()
        if self._publishes() and (self.schedule.is_published(step) or await self.synchronizer.is_requested()):
            metrics |= await self._publish()
        self._metrics, self._pending = metrics | self._pending | self.uploads.metrics(), {}
        self.monitor.log(self._metrics, step=step)
        if self.config.trainer.enable_preview and shown and self.schedule.is_published(step):
            self._preview(shown, step)

    def _preview(self, shown: list[dict[str, Any]], step: int) -> None:
        self.monitor.log_table("rollout_examples", shown, step=step)
        for row in shown:
            texts = {name: str(row.pop(name, None)) for name in ("prompt", "response")}
            facts = ", ".join(f"{name} {value}" for name, value in row.items() if value is not None)
            logger.info("sample of step %d: %s: %r -> %r", step, facts, texts["prompt"], texts["response"])

    def _publishes(self) -> bool:
        if self.config.mode == Mode.BOTH:
            return True
        return isinstance(self._source, BufferSource) and self.config.synchronizer.sync_method == SyncMethod.CHECKPOINT

    # --------------------------------------------------------------- checkpoint
    def _is_save_due(self) -> bool:
        interval = self.config.trainer.save_interval
        return bool(interval) and self.step % interval == 0 and not self._is_done()

    async def _save(self, *, is_last: bool) -> None:
        """Write the checkpoint of the current step unless it exists already."""
        assert self._source is not None, "prepare() comes first"
        choice = self.config.trainer.save_hf_checkpoint
        hf = choice == "always" or (choice == "last" and is_last)
        if self._is_saved(hf):
            return
        start = time.perf_counter()
        # Weights before the explorer's state: in between it may finish with some versions, but it requests no others.
        served = await self.publisher.served_weights(self.step)
        explorer_state = await self.synchronizer.explorer_state(self.config.explorer.name)
        state = self._state(tuple(sorted(served)))
        loop = asyncio.get_running_loop()

        def fill(folder: Path) -> None:
            run_on(loop, self.backend.save(folder, hf=hf))
            state.write(folder)
            write_explorer_part(folder, explorer_state, served)

        meta = {"run": self.run_name, "ledger_cut": self.step, "has_hf_weights": hf}
        meta["is_healthy"], keep = self.backend.is_healthy(), self.config.trainer.max_checkpoints_to_keep
        self._checkpoint = await self._thread.call(self.checkpoints.write, self.step, fill, meta=meta, keep=keep)
        self._saved = (self.step, hf)
        self.uploads.offer(self.step)
        self._pending["time/save_checkpoint"] = time.perf_counter() - start
        await self._source.prune(min(self.checkpoints.steps()))
        logger.info("checkpoint of step %d: %s", self.step, self._checkpoint)
        self.monitor.tell({headline.CHECKPOINT: self.step}, step=self.step)

    def _is_saved(self, hf: bool) -> bool:
        """Return whether this step is saved, with Hugging Face weights if `hf`."""
        if self._saved is None and self.resume is not None:
            manifest = self.checkpoints.manifest(self.resume)
            self._saved = (manifest["step"], bool(manifest["meta"].get("has_hf_weights")))
        return self._saved is not None and self._saved[0] == self.step and (self._saved[1] or not hf)

    def _state(self, served_versions: tuple[int, ...]) -> TrainerState:
        sampler, source = self._positions
        return TrainerState(
            step=self.step,
            run=self.run_name,
            sampler=sampler,
            source=source,
            monitor=dict(self.monitor.state_dict()),
            reference=self.backend.reference(),
            served_versions=served_versions,
            num_tokens=self._num_tokens,
        )
