"""The sources of the trainer's experiences: a buffer or a dataset."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.store import ConsumerToken, ExperienceStore
from trinity.common.config import Config
from trinity.common.config.resolved import schema_of
from trinity.common.experience import Experience
from trinity.trainer.state import TrainerState


class BufferSource:
    """Claims experiences from the store and records their use.

        stored --read--> claimed --commit(step)--> used by `step`
                            |
                            +------drop----------> dropped by the next committed step

    Args:
        store: an open store.
        token: the right to claim.
        timeout_s: deadline of a read (`max_read_timeout`).

    Attributes:
        is_closed: no row is left or will be written, and every dropped row is recorded with a step.
    """

    def __init__(self, store: ExperienceStore, token: ConsumerToken, *, timeout_s: float) -> None:
        self.store = store
        self.token = token
        self.timeout_s = timeout_s
        self.is_closed = False
        self._is_complete = True
        self._claimed: set[str] = set()
        self._has_dropped = False
        self._evicted = 0

    async def read(self, num_experiences: int, *, trained_version: int) -> list[Experience]:
        """Claim the next `num_experiences` rollouts with all their experiences.

        Return fewer if no more can come before newer weights, and none at the end.

        Raises:
            StarvedError: nothing came before the deadline although producers are open.
        """
        self._is_complete = False
        batch = await asyncio.to_thread(
            self.store.read_batch,
            self.token,
            num_experiences,
            timeout_s=self.timeout_s,
            trained_version=trained_version,
        )
        self.is_closed = batch.is_closed and not self._has_dropped
        self._is_complete = batch.is_complete
        self._evicted += batch.evicted
        self._claimed.update(exp.eid.uid for exp in batch.experiences)
        return batch.experiences

    async def drop(self, uids: list[str], *, reason: str) -> None:
        """Record claimed rows as dropped by the current step.

        A run that resumes before that step reads them again.
        """
        await asyncio.to_thread(self.store.drop, self.token, uids, reason)
        self._claimed.difference_update(uids)
        self._has_dropped = True

    async def commit(self, step: int, uids: list[str]) -> dict[str, float]:
        """Record that step `step` used those of `uids` that were claimed here.

        Return what happened to the buffer's rollouts, as metrics.
        """
        own = [uid for uid in uids if uid in self._claimed]
        fates = await asyncio.to_thread(self.store.commit_step, self.token, step, own)
        self._claimed.difference_update(own)
        self._has_dropped = False
        return fates.metrics()

    async def prune(self, up_to_step: int) -> None:
        """Delete payloads of rows that no kept checkpoint can need again."""
        await asyncio.to_thread(self.store.prune, self.token, up_to_step)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: the ledger holds the position."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Return the counts of the last read.

        `sample/incomplete_batch_count` is 1 if the last batch had fewer rollouts than requested, else 0.
        A replay buffer adds `sample/evicted_count`: experiences evicted since the last call, because it was full.
        """
        metrics = {"sample/incomplete_batch_count": float(not self._is_complete)}
        if self.store.replay is not None:
            metrics["sample/evicted_count"] = float(self._evicted)
            self._evicted = 0
        return metrics


class DatasetSource:
    """Reads demonstrations, pairs or texts from a dataset.

    The position of the reader is part of the checkpoint.

    Args:
        reader: the dataset.
        quarantine: folder for the rows that are left out; None writes none.

    Attributes:
        is_closed: the last epoch has ended.
    """

    def __init__(self, reader: DatasetReader, *, quarantine: Path | None = None) -> None:
        self.reader = reader
        self.quarantine = quarantine
        self.is_closed = False
        self._num_written = 0

    async def read(self, num_experiences: int, *, trained_version: int) -> list[Experience]:
        """Return the next experiences; fewer, then none, after the last epoch."""
        experiences = await asyncio.to_thread(self.reader.read, num_experiences)
        self.is_closed = not experiences
        number = len(self.reader.quarantined)
        if self.quarantine is not None and number > self._num_written:
            self.reader.write_quarantine(self.quarantine)
            self._num_written = number
        return experiences

    async def drop(self, uids: list[str], *, reason: str) -> None:
        """Do nothing: the reader has already passed these rows."""

    async def commit(self, step: int, uids: list[str]) -> dict[str, float]:
        """Return no metrics: the checkpoint holds the position of the reader."""
        return {}

    async def prune(self, up_to_step: int) -> None:
        """Do nothing: a dataset keeps no payloads to delete."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data."""
        return self.reader.state_dict()

    def metrics(self) -> dict[str, float]:
        """Return the counts of rows that were left out."""
        return self.reader.metrics()

    def planned_steps(self, batch_size: int) -> int | None:
        """Return the training steps of all epochs; None without an end."""
        return -(-len(self.reader) * self.reader.total_epochs // batch_size) or None


def open_dataset(config: Config, *, tokenizer: PreTrainedTokenizerBase, state: TrainerState | None) -> DatasetReader:
    """Open the dataset that a run trains on, at its place in a checkpoint.

    Args:
        config: resolved configuration of an algorithm that learns from a dataset.
        tokenizer: with its chat template.
        state: of the checkpoint; None: at the beginning.

    Raises:
        DataError: the dataset cannot be used (E4001 to E4062).
        CheckpointError: the dataset or its selector changed since the checkpoint (E7005).
    """
    buffer = config.buffer.trainer_input.experience_buffer
    assert buffer is not None, "the configuration of an algorithm of a dataset names it"
    has_steps = config.trainer.total_steps is not None or config.buffer.total_steps is not None
    reader = DatasetReader(
        buffer,
        tokenizer=tokenizer,
        schema=schema_of(config),
        seed=config.seed,
        max_length=config.model.max_model_len,
        total_epochs=0 if has_steps else config.buffer.total_epochs,
        max_bad_row_ratio=config.buffer.max_bad_row_ratio,
        model_path=config.model.model_path,
    )
    if state is not None and state.begun_from:
        reader.skip(state.step * config.buffer.train_batch_size)
    elif state is not None:
        reader.load_state_dict(state.source)
    return reader
