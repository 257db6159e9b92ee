"""The batches of a run's training steps, once more.

    rollouts        <- the ledger, in the order of the batch, with their stored payloads
    a dataset       <- its reader, from the position in the newest checkpoint before the step
    demonstrations  <- a dataset's in the same way; a queue's from the ledger of its database

Nothing is written, neither to this run nor to any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from trinity.algorithm import SampleStrategy
from trinity.algorithm.planning import mixes_experts, planned_steps
from trinity.algorithm.sample_strategy.making import make_strategy, sample
from trinity.algorithm.sample_strategy.source import AuxiliaryReader
from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.records import Records
from trinity.common.config import Config
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.resolved import schema_of
from trinity.common.errors import CheckpointError, DataError
from trinity.common.experience import Experience
from trinity.common.models.chat_template import load_tokenizer
from trinity.explorer.assembly import build_reader
from trinity.launch.reuse.past_run import PastRun, stored_experiences
from trinity.runtime.event_loop import run_event_loop
from trinity.trainer.auxiliary import consumer_of, demonstration, open_auxiliary
from trinity.trainer.source import DatasetSource, open_dataset
from trinity.trainer.state import TrainerState, read_trainer_state


def trains_on_dataset(config: Config) -> bool:
    """Return whether a run's training steps are of a dataset alone."""
    return schema_of(config) != "experience"


class PastBatches:
    """Gives the batches of consecutive training steps.

    Args:
        run: the run.
        config: its own configuration.
        folder: for what a run would write beside its checkpoints.

    Attributes:
        records: the store of its rollouts; None if it trains on a dataset alone.
        rollouts: of the newest batch, those of the store, in their order.

    Raises:
        EnvironmentProblem: the store cannot be read (E3435).
    """

    def __init__(self, run: PastRun, config: Config, *, folder: Path) -> None:
        self.run = run
        self.config = config.model_copy(update={"checkpoint_job_dir": str(folder)})
        self.records = None if trains_on_dataset(config) else Records(run.url)
        self.rollouts: list[Experience] = []
        self._stored: dict[int, list[Experience]] = {}
        self._source: DatasetSource | _StoredSource = _StoredSource(self._stored)
        self._queues: list[_PastQueue] = []
        self._strategy: SampleStrategy | None = None
        self._before: dict[str, Any] = {}

    def begin(self, start: Path | None, step: int) -> None:
        """Check that the batches after a checkpoint are there, up to a step.

        Args:
            start: the checkpoint; None: the run's first step comes first.
            step: the last one.

        Raises:
            DataError: the step is not among those of the run (E4070), a payload was pruned (E4071), or the rows of a
                dataset are others now (E4073) or cannot be used.
            CheckpointError: a checkpoint cannot be read.
        """
        if self.records is None:
            self._check_step(step)
        else:
            name = self.run.buffer_of(self.config)
            first = 1 if start is None else 1 + int(start.name.rsplit("_", 1)[1])
            for number in (step, *range(first, step)):  # the message is of the step that was asked for
                self._stored[number] = self.run.experiences(self.records, number, buffer=name)
        if self.records is None or mixes_experts(self.config):
            self._strategy = self._begun(start)

    def of(self, step: int) -> list[Experience]:
        """Return the next step's batch.

        Raises:
            DataError: it is not to be had (E4070, E4071), or a row of it cannot be read.
        """
        self.rollouts = self._stored.get(step, [])
        if self._strategy is None:
            return self._stored.pop(step)
        self._before = self._strategy.state_dict()
        return self._sampled(self._strategy, step)

    def again(self, step: int, rollouts: list[Experience]) -> list[Experience]:
        """Return the newest batch once more, with other rollouts in it.

        Args:
            step: its number.
            rollouts: in place of those of the store.
        """
        if self._strategy is None:
            return rollouts
        self._stored[step] = rollouts
        self._strategy.load_state_dict(self._before)
        return self._sampled(self._strategy, step)

    def planned_steps(self) -> int | None:
        """Return the training steps that the run planned, for its learning rate."""
        config, buffer = self.config, self.config.buffer
        if isinstance(self._source, DatasetSource):
            return planned_steps(config) or self._source.planned_steps(buffer.train_batch_size)
        explored = buffer.total_steps
        if explored is None and config.trainer.total_steps is None and buffer.explorer_input.taskset is not None:
            epochs = buffer.total_epochs or 0
            explored = -(-len(build_reader(config)) * epochs // buffer.batch_size) or None
        return planned_steps(config, explored)

    def close(self) -> None:
        """Close the databases."""
        with ExitStack() as stack:
            if self.records is not None:
                stack.callback(self.records.close)
            if self._strategy is not None:
                stack.callback(self._strategy.close)

    def _check_step(self, step: int) -> None:
        last = self.run.last_step(self.config)
        if step > last:
            known = f"it has the steps 1 to {last}" if last else "it has no training step"
            raise DataError(
                f"training step {step} of {self.run.name} is in no checkpoint and no metrics; {known}", code="E4070"
            )

    def _begun(self, start: Path | None) -> SampleStrategy:
        """Return the strategy, with its readers where they were after `start`."""
        config, tokenizer = self.config, load_tokenizer(self.config.model)
        state = None if start is None else read_trainer_state(start)
        newest = self.run.newest_checkpoint()
        known = None if newest is None else read_trainer_state(newest)
        try:
            if trains_on_dataset(config):
                reader = open_dataset(config, tokenizer=tokenizer, state=state)
                self._source = DatasetSource(reader)
                if state is None and known is not None and known.source:
                    reader.return_to(known.source)
            strategy = make_strategy(config, self._source, batch_size=config.buffer.train_batch_size)
            strategy.auxiliary = {name: self._auxiliary(name, tokenizer) for name in strategy.auxiliary_buffers()}
            if state is not None and not state.begun_from:
                strategy.load_state_dict(state.sampler)
            else:
                _return_to_beginning(strategy, known)
        except CheckpointError as error:
            if error.code != "E7005":
                raise
            raise DataError(
                f"{error.args[0].partition('; ')[0]}: the rows are not those that the run trained on, and other "
                "batches would be taken for them; restore them",
                code="E4073",
            ) from error
        return strategy

    def _auxiliary(self, name: str, tokenizer: PreTrainedTokenizerBase) -> AuxiliaryReader:
        buffer = self.config.buffer.trainer_input.auxiliary_buffers.get(name)
        if buffer is None or buffer.storage_type != "queue":
            return open_auxiliary(self.config, [name], tokenizer=tokenizer)[name]
        queue = _PastQueue(buffer, job=self.run.name, tokenizer=tokenizer)
        self._queues.append(queue)
        return queue

    def _sampled(self, strategy: SampleStrategy, step: int) -> list[Experience]:
        for queue in self._queues:
            queue.step = step

        async def call() -> list[Experience]:
            experiences, _, _ = await sample(strategy, step)
            await strategy.commit(step, experiences)
            return experiences

        experiences = run_event_loop(call())
        if not experiences:
            raise DataError(f"training step {step} of {self.run.name}: its dataset ends before it", code="E4070")
        return experiences


def _return_to_beginning(strategy: SampleStrategy, known: TrainerState | None) -> None:
    """Take the rows that the run had, where a checkpoint tells which."""
    for name, reader in strategy.auxiliary.items():
        state = None if known is None else known.sampler.get(name)
        if isinstance(reader, DatasetReader) and state:
            reader.return_to(state)


class _StoredSource:
    """The rollouts of each training step, for a strategy that adds others."""

    is_closed = False

    def __init__(self, stored: dict[int, list[Experience]]) -> None:
        self.stored = stored

    async def read(self, num_experiences: int, *, trained_version: int) -> list[Experience]:
        """Return those of the step after `trained_version`."""
        return self.stored.pop(trained_version + 1)

    async def drop(self, uids: list[str], *, reason: str) -> None:
        """Do nothing: what the step dropped is not among what it trained."""


class _PastQueue:
    """The demonstrations that each training step took from a queue.

    Args:
        config: the queue.
        job: `project/name` of the run that took them.
        tokenizer: of its model.

    Attributes:
        step: the training step whose demonstrations are read next.
    """

    def __init__(self, config: ExperienceBufferConfig, *, job: str, tokenizer: PreTrainedTokenizerBase) -> None:
        assert config.place is not None, "a queue beside the experience buffer has a database of its own"
        self.config = config
        self.job = job
        self.tokenizer = tokenizer
        self.step = 0
        self._records = Records(config.place)

    def read(self, n: int) -> list[Experience]:
        """Return the demonstrations of the step, however many they are.

        Raises:
            DataError: there are none (E4070), or not any more (E4071).
        """
        what = f"training step {self.step} of {self.job}"
        rows = self._records.taken(consumer_of(self.job), self.step, buffer=self.config.name)
        if not rows:
            raise DataError(f"the queue {self.config.name!r} has nothing that {what} took from it", code="E4070")
        stored = stored_experiences(rows, what=f"{what} with demonstrations of the queue {self.config.name!r}")
        return [demonstration(each, self.tokenizer, queue=self.config.name) for each in stored]

    def commit(self, step: int, uids: Sequence[str]) -> None:
        """Nothing to record: the ledger has the step."""

    def close(self) -> None:
        """Close the database."""
        self._records.close()

    def metrics(self) -> dict[str, float]:
        """Return none: what was left out is not asked again."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return none: the ledger has the position."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore: the ledger has the position."""
