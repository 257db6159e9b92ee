"""The trainer's side of a run: the trainer and its back end.

Covers preparation, the run and the end.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.constants import Mode, StorageType
from trinity.common.errors import StarvedError
from trinity.launch.explorer_liveness import watch_explorers
from trinity.launch.side import ProcessSpec, Side, end_all, folder_synchronizer, open_monitor
from trinity.synchronizer.local import LocalSynchronizer
from trinity.synchronizer.schedule import sync_schedule
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.synchronizer.base import Synchronizer
    from trinity.trainer.summary import TrainSummary
    from trinity.trainer.trainer import Trainer

logger = get_logger("trainer")


class TrainerSide(Side["TrainSummary"]):
    """Trainer of one stage, linked to the explorer by the synchronizer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._trainer: Trainer | None = None
        self._is_apart = False

    @classmethod
    def process(cls, config: Config) -> ProcessSpec:
        """Return the resources of the trainer's process.

        It has no GPU if ranks have them.
        """
        if not config.cluster.trainer_gpu_num:
            return ProcessSpec(config.trainer.name)
        from trinity.trainer.rank_group import gpus_of_rank, has_ranks

        return ProcessSpec(config.trainer.name, 0.0 if has_ranks(config) else gpus_of_rank(config, 1))

    @classmethod
    def load(cls) -> None:
        """Import what preparation needs."""
        import trinity.buffer.buffer
        import trinity.trainer.trainer  # noqa: F401

    @property
    def trainer(self) -> Trainer:
        """The trainer; there after `prepare`."""
        assert self._trainer is not None, "prepare() comes first"
        return self._trainer

    async def prepare(
        self,
        synchronizer: Synchronizer | None = None,
        *,
        resume: Path | None = None,
        explore_steps: int | None = None,
    ) -> int | None:
        """Load the model, the data and, when resuming, the checkpoint.

        The synchronizer then holds the checkpoint's versions. Return the training steps of the run, or None if their
        number is not known.

        Args:
            synchronizer: between the sides, or a handle of it; None: they run apart and meet in the folder of the job,
                or the trainer meets nobody.
            resume: checkpoint to continue from.
            explore_steps: explore steps that the explorer plans, for the learning-rate schedule.

        Raises:
            TrinityError: the model, the data, the store or the checkpoint cannot be used.
        """
        from trinity.buffer.buffer import open_store
        from trinity.trainer.trainer import Trainer

        config, buffer = self.config, self.config.buffer.trainer_input.experience_buffer
        reads_dataset = buffer is not None and buffer.storage_type == StorageType.FILE
        self._is_apart = config.mode == Mode.TRAIN and not reads_dataset
        if self._store is None and (self._is_apart or config.mode == Mode.BOTH):
            self._store = open_store(config)
        self._monitor = open_monitor(config, config.trainer.name, self._on_metrics)
        synchronizer = synchronizer or self._meeting_point()
        self._trainer = Trainer(
            config,
            store=self._store,
            synchronizer=synchronizer,
            monitor=self._monitor,
            resume=resume,
            runtime=self.runtime,
        )
        await self._trainer.prepare(explore_steps=explore_steps)
        self._tell_total(config.trainer.name, self._trainer.total_steps, step=self._trainer.step)
        if self._is_apart:
            await self._begin_apart(self._trainer)
        elif resume is not None and config.mode == Mode.BOTH:
            await self._restore(resume, synchronizer)
        if self._is_stopped:
            self._trainer.request_stop()
        return self._trainer.total_steps

    async def _begin_apart(self, trainer: Trainer) -> None:
        """Announce to the explorers the step and weights training starts from.

        They are those of the trainer's checkpoint.

        Explorers load the initial model themselves. It is announced only where weights were published before: an
        explorer may still have weights of a trainer that ended without a checkpoint.
        """
        has_published = bool(trainer.publisher.transport.versions())
        weights = {trainer.step: await trainer.weights()} if trainer.step or has_published else {}
        explorer = self.config.explorer.name
        await trainer.publisher.restore(trainer.step, None, explorer=explorer, weights=weights)

    def _meeting_point(self) -> Synchronizer:
        """Return the synchronizer for explorers that run apart.

        A trainer that trains on a dataset has no explorers.
        """
        config = self.config
        if not self._is_apart or self._store is None:
            return LocalSynchronizer(sync_schedule(config), timeout_s=config.synchronizer.sync_timeout)
        return folder_synchronizer(config, self._store, trainer=config.trainer.name)

    async def run(self) -> TrainSummary:
        """Train to the end, or until `request_stop`; return what was done.

        Raises:
            TrinityError: what ended the trainer.
            StarvedError: the explorers ended before the planned steps were trained (E5401).
        """
        if not self._is_apart or self._store is None:
            return self._told_length(await self.trainer.train())
        training = asyncio.ensure_future(self.trainer.train())
        watching = asyncio.ensure_future(watch_explorers(self.config, self._store))
        try:
            await asyncio.wait((training, watching), return_when=asyncio.FIRST_COMPLETED)
            return self._told_length(training.result()) if training.done() else watching.result()
        finally:
            await end_all((training, watching))

    def _told_length(self, summary: TrainSummary) -> TrainSummary:
        """Return the summary; report an early end of the experiences.

        Otherwise an end before the planned steps might go unnoticed.
        """
        total, is_short = self.trainer.total_steps, not (self.trainer.is_complete or summary.is_stopped)
        if self._is_apart and is_short:
            raise StarvedError(
                f"training ended at step {summary.step} of {total} (trainer.total_steps): every explorer is finished "
                f"and nothing is left to train on; what was trained is saved. Start an explorer with a greater "
                f"buffer.total_steps or total_epochs and then this command again, or write trainer.total_steps: "
                f"{summary.step}",
                code="E5401",
            )
        if self.config.mode == Mode.BOTH and is_short:
            logger.warning(
                "training ended at step %d of %d planned ones: the explorer is finished, and what it gave, without "
                "rollouts that failed or were filtered, is trained",
                summary.step,
                total,
            )
        return summary

    async def request_stop(self) -> None:
        """End after the step under way; a wait for experiences ends at once."""
        self._is_stopped = True
        if self._trainer is not None:
            self._trainer.request_stop()

    async def close(self) -> None:
        """Close the trainer, and the store if it is its own.

        Raises:
            Exception: the trainer could not be closed.
        """
        await self._close([] if self._trainer is None else [self._trainer.close])

    async def _restore(self, resume: Path, synchronizer: Synchronizer) -> None:
        """Give the synchronizer the versions that the explorer can ask for.

        The explorer said where it stands, which may be later than at the checkpoint, and never earlier.
        """
        from trinity.explorer.state import ExplorerState

        state = await synchronizer.explorer_state(self.config.explorer.name)
        state = state or ExplorerState.load(resume).as_json()
        await self.trainer.restore_versions(state)
