"""Readers of demonstrations in auxiliary datasets and queues.

A sample strategy reads them in addition to the experience buffer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash
from transformers import PreTrainedTokenizerBase

from trinity.algorithm.sample_strategy.source import AuxiliaryReader
from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.recorded import check_vocabulary, tokenized
from trinity.buffer.store import Batch, ConsumerToken, ExperienceStore
from trinity.buffer.store.tables import NO_ROOM
from trinity.buffer.store.types import num_rollouts
from trinity.common.config import Config
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    StarvedError,
    StoreError,
)
from trinity.common.experience import EID, Experience
from trinity.utils.log import get_logger, redact

TOLD_EVERY_S = 30.0
POLL_S = 0.2
_MAX_NAME = 128

logger = get_logger("trainer.auxiliary")


def open_auxiliary(
    config: Config, names: Iterable[str], *, tokenizer: PreTrainedTokenizerBase, cut: int = 0
) -> dict[str, AuxiliaryReader]:
    """Open a reader of each named auxiliary buffer: a dataset or a queue.

    Args:
        config: resolved configuration.
        names: keys of `buffer.trainer_input.auxiliary_buffers`; a dataset begins again after its last row.
        tokenizer: with its chat template.
        cut: training step from which the run continues; what later steps took from a queue is read again.

    Raises:
        ConfigError: no auxiliary buffer of that name (E1843).
        DataError: the dataset cannot be used (E4001 to E4062).
        StoreError: the database of a queue cannot be used.
    """
    buffers = config.buffer.trainer_input.auxiliary_buffers
    readers: dict[str, AuxiliaryReader] = {}
    for name in names:
        if name not in buffers:
            raise ConfigError(
                f"algorithm.sample_strategy {config.algorithm.sample_strategy} reads the auxiliary buffer {name!r}, "
                f"which buffer.trainer_input.auxiliary_buffers does not have; it has {', '.join(buffers) or 'none'}",
                code="E1843",
            )
        buffer, limit = buffers[name], config.model.max_model_len
        if buffer.storage_type == "queue":
            job = f"{config.project}/{config.name}"
            readers[name] = QueueReader(buffer, key=name, job=job, tokenizer=tokenizer, max_length=limit, cut=cut)
            continue
        schema, seed = buffer.schema_type or "sft", config.seed
        reader = DatasetReader(
            buffer,
            tokenizer=tokenizer,
            schema=schema,
            seed=seed,
            max_length=limit,
            total_epochs=0,
            max_bad_row_ratio=config.buffer.max_bad_row_ratio,
            model_path=config.model.model_path,
        )
        reader.write_quarantine(Path(config.checkpoint_job_dir) / "buffer" / "quarantine")
        readers[name] = reader
    return readers


def consumer_of(job: str) -> str:
    """Return the name under which a job takes rollouts from queues.

    It has a slash, so that the run that fills the queue does not take it for its own trainer (`last_trainer`).

    Args:
        job: `project/name`.
    """
    return job if len(job) <= _MAX_NAME else f"job/{xxhash.xxh3_128_hexdigest(job.encode())}"


def demonstration(experience: Experience, tokenizer: PreTrainedTokenizerBase, *, queue: str) -> Experience:
    """Return an experience of another run as something to imitate.

    Its identity is one that no rollout of this run has.

    Args:
        experience: as the other run stored it.
        tokenizer: of the model that is trained.
        queue: name of the buffer that it is from.

    Raises:
        DataError: nothing in it can be imitated (E4025).
    """
    row, eid = tokenized(experience, tokenizer), experience.eid
    return Experience(
        eid=EID(f"{queue}/{eid.batch}", eid.task, eid.run, eid.step, eid.suffix),
        tokens=torch.tensor(row.tokens, dtype=torch.long),
        prompt_length=row.prompt_length,
        action_mask=torch.tensor(row.action_mask, dtype=torch.bool),
        info={"dataset": queue, "uid": eid.uid},
        prompt_text=experience.prompt_text,
        response_text=experience.response_text,
    )


class QueueReader:
    """Demonstrations from a queue to which another run appends.

        appended --read--> claimed --commit(step)--> used by `step`
                     |
                     +--> dropped: unusable or overlong

    Each experience is used once, in the order of the log. The ledger of the queue's database records under the name of
    this job which step used what. A run that continues from a checkpoint therefore reads again what later steps had
    used, and another job gets the rest.

    Args:
        config: the queue: `path` and `name` are those of the experience buffer that the other run fills.
        key: its name under `auxiliary_buffers`.
        job: `project/name` of this run.
        tokenizer: of the model that is trained.
        max_length: longest experience in tokens; longer ones are dropped and counted.
        cut: training step from which this run continues.

    Raises:
        StoreError: the database cannot be used: it is of another program, or of another version (E5202).
        EnvironmentProblem: it cannot be written (E3601), or its driver is not installed (E3301).
    """

    def __init__(
        self,
        config: ExperienceBufferConfig,
        *,
        key: str,
        job: str,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None,
        cut: int = 0,
    ) -> None:
        self.config = config
        self.setting = f"buffer.trainer_input.auxiliary_buffers.{key}"
        self.consumer = consumer_of(job)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.num_dropped = {"unusable": 0, "overlong": 0}
        self._cut = cut
        self._run: tuple[str, str] | None = None
        self._token: ConsumerToken | None = None
        self._claimed: dict[str, str] = {}
        self._is_of_this_vocabulary = False
        self._is_closed = threading.Event()
        assert config.place is not None, "a queue beside the experience buffer has a database of its own"
        self._place = f"buffer {config.name!r} of {redact(config.place)}"
        self._store = self._opened(config.place)

    def read(self, n: int) -> list[Experience]:
        """Return the experiences of the next `n` rollouts.

        There are fewer at the end of the queue and at the deadline.

        Raises:
            StarvedError: nothing came before the deadline (E5400), or all of it was used and no more comes (E5402).
            StoreError: several runs fill the queue (E5211), or its database cannot be used.
            DataError: the experiences were made with another tokenizer (E4026).
        """
        deadline = time.monotonic() + self.config.max_read_timeout
        with self._telling():
            token = self._joined(deadline)
            experiences: list[Experience] = []
            while (missing := n - num_rollouts(experiences)) > 0:
                batch = self._next(token, missing, deadline)
                experiences += self._usable(token, batch.experiences)
                if batch.is_closed or (experiences and not batch.is_complete) or time.monotonic() >= deadline:
                    break
        if not experiences:
            self._raise_starved(batch.is_closed)
        return experiences

    def commit(self, step: int, uids: Sequence[str]) -> None:
        """Record that step `step` used those of `uids` that were read here."""
        if self._token is not None:
            own = [self._claimed.pop(uid) for uid in uids if uid in self._claimed]
            self._store.commit_step(self._token, step, own)

    def close(self) -> None:
        """Close the database; a read that is waiting fails."""
        self._is_closed.set()
        self._store.close()

    def metrics(self) -> dict[str, float]:
        """Return how many unusable and overlong experiences were dropped so far."""
        return {
            "sample/quarantined_row_count": float(self.num_dropped["unusable"]),
            "sample/overlong_count": float(self.num_dropped["overlong"]),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the queue's run and the counts; the ledger holds the position."""
        return {"run": list(self._run or ()), "num_dropped": dict(self.num_dropped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            CheckpointError: the checkpoint was written with a dataset in place of the queue (E7005).
        """
        if "num_dropped" not in state:
            raise CheckpointError(
                f"{self.setting} is a queue, and the checkpoint holds the position in a dataset; write the "
                "storage_type that it had, or start a new run with continue_from_checkpoint: false",
                code="E7005",
            )
        self._run = (state["run"][0], state["run"][1]) if state["run"] else None
        self.num_dropped = dict(state["num_dropped"])

    def _opened(self, url: str) -> ExperienceStore:
        return ExperienceStore(url, kept_bytes=None, setting=f"{self.setting}.path").open()

    def _joined(self, deadline: float) -> ConsumerToken:
        """Return the token to claim rows, once a run has opened the queue."""
        while self._token is None:
            runs = [self._run] if self._run is not None else self._store.runs(self.config.name)
            if len(runs) > 1:
                raise StoreError(
                    f"{self._place} has experiences of {len(runs)} runs ({', '.join(run for run, _ in runs)}), but a "
                    "queue belongs to one run; give each run its own database, or its own name",
                    code="E5211",
                )
            if runs:
                self._run = runs[0]
                run, stage = runs[0]
                self._token = self._store.open_consumer(
                    self.config.name, self.consumer, run=run, stage=stage, cut=self._cut
                )
            elif time.monotonic() >= deadline:
                self._raise_starved(is_at_end=False)
            elif self._is_closed.wait(POLL_S):
                raise StoreError(f"{self._place} was closed while a read waited for it", code="E5208")
        return self._token

    def _next(self, token: ConsumerToken, n: int, deadline: float) -> Batch:
        """Return up to `n` rollouts; none at the end or at the deadline."""
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            try:
                # Its explorer may wait for weights, which its trainer publishes, or for room, which this read makes.
                batch = self._store.read_batch(token, n, timeout_s=left_s, trained_version=NO_ROOM - 1)
            except StarvedError:
                return Batch([], is_complete=False, is_closed=False)
            if batch.experiences or batch.is_closed or time.monotonic() >= deadline or self._is_closed.wait(POLL_S):
                return batch

    def _usable(self, token: ConsumerToken, found: list[Experience]) -> list[Experience]:
        """Return the usable experiences; drop the others in the ledger."""
        if found and not self._is_of_this_vocabulary:
            check_vocabulary(found, self.tokenizer, name=self.config.name)
            self._is_of_this_vocabulary = True
        usable: list[Experience] = []
        dropped: dict[str, list[str]] = {}
        for experience in found:
            try:
                made = demonstration(experience, self.tokenizer, queue=self.config.name)
            except DataError as error:
                if not self.num_dropped["unusable"]:
                    logger.warning("%s: %s; it is dropped, as others will be", self._place, error)
                reason = "unusable"
            else:
                if self.max_length is None or len(made.tokens) <= self.max_length:
                    self._claimed[made.eid.uid] = experience.eid.uid
                    usable.append(made)
                    continue
                reason = "overlong"
            dropped.setdefault(reason, []).append(experience.eid.uid)
            self.num_dropped[reason] += 1
        for reason, uids in dropped.items():
            self._store.drop(token, uids, reason)
        return usable

    def _raise_starved(self, is_at_end: bool) -> None:
        if is_at_end:
            raise StarvedError(
                f"all experiences of {self._place} were used and its producers are finished, so that no demonstration "
                "is left for the next step; let its run explore more and continue, train fewer steps "
                "(trainer.total_steps), or write storage_type: sql, which begins again after the last one",
                code="E5402",
            )
        raise StarvedError(
            f"no demonstration arrived in {self._place} within {self.config.max_read_timeout:g} s: {self._state()}; "
            f"look at the log of that run, or raise {self.setting}.max_read_timeout"
        )

    def _state(self) -> str:
        if self._run is None:
            return "no run has opened it"
        run, stage = self._run
        producers = self._store.producers(self.config.name, run=run, stage=stage)
        names = [name for name, is_open in producers.items() if is_open]
        return f"{', '.join(names)} of run {run} did not finish" if names else f"run {run} gave nothing"

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Log at intervals what the block is waiting for."""
        done, begun = threading.Event(), time.monotonic()

        def tell() -> None:
            while not done.wait(TOLD_EVERY_S):
                waited_s, limit_s = time.monotonic() - begun, self.config.max_read_timeout
                text = "waiting for demonstrations in %s for %.0f s (at most %g s, %s.max_read_timeout)"
                logger.warning(text, self._place, waited_s, limit_s, self.setting)

        teller = threading.Thread(target=tell, name=f"{self.config.name}-wait", daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()
