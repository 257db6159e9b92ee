"""One rank of the trainer, which runs in its own process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from trinity.common.config import Config
from trinity.common.errors import TrinityError
from trinity.common.experience import Experience
from trinity.common.models.chat_template import load_tokenizer
from trinity.trainer.verl.checkpoint import full_weights
from trinity.trainer.verl.parallel.ranks import Ranks
from trinity.trainer.verl.settings import num_stages, tensor_size
from trinity.trainer.verl.worker import ActorWorker
from trinity.utils.log import get_logger
from trinity.utils.meeting import open_store, stay_on_this_machine

if TYPE_CHECKING:
    from trinity.runtime.base import ObjectRef, Objects

logger = get_logger("trainer")

TIMEOUT_KEY = "trainer.rank_timeout"
# Words in the errors of gloo, NCCL and torch.distributed's store when a peer is silent or gone.
LOST = ("gloo", "nccl", "timed out", "timeout", "connection reset", "connection closed", "broken pipe", "socket")


class RankError(TrinityError):
    """A rank lost another one, which died, hangs or cannot be reached."""

    default_code = "E5682"


class RankWorker:
    """Holds one rank's part of the model and trains on its rows.

    Args:
        config: the keys that are set in the resolved configuration of the stage, as plain values.
        rank: 0-based.
        world: number of ranks.
        patience_s: longest wait for the other ranks, in seconds.
        num_threads: CPU threads of the rank.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        rank: int,
        world: int,
        patience_s: float,
        num_threads: int = 1,
        device: str = "auto",
    ) -> None:
        torch.set_num_threads(num_threads)
        self.config = Config.model_validate(config)
        self.rank = rank
        self.world = world
        self.patience_s = patience_s
        on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        self.device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
        self._store: Any = None
        self._worker: ActorWorker | None = None
        self._held: ObjectRef | None = None

    async def ping(self) -> int:
        """Return the rank, also while a training step is running."""
        return self.rank

    # ------------------------------------------------------------------- set-up
    def open_meeting(self, host: str) -> str:
        """Open the rendezvous store on this rank; return its `host:port`.

        Only one of the ranks opens it.
        """
        self._store = open_store(host, timeout=timedelta(seconds=self.patience_s))
        return f"{host}:{self._store.port}"

    def join(self, address: str) -> None:
        """Join the process group whose store listens at `address`.

        Raises:
            RankError: the other ranks did not join in time (E5682).
        """
        timeout = timedelta(seconds=self.patience_s)
        backend = "gloo" if self.device.type == "cpu" else "cpu:gloo,cuda:nccl"
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        with self._together("meeting the other ranks"):
            host, _, port = address.rpartition(":")
            stay_on_this_machine(host)
            if self._store is None:
                self._store = distributed.TCPStore(host, int(port), is_master=False, timeout=timeout)
            distributed.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=self.world, timeout=timeout
            )

    def prepare(self, total_steps: int | None) -> None:
        """Load the model and keep this rank's part; see `TrainerBackend.prepare`."""
        with self._together("loading the model"):
            ranks = Ranks(
                self.rank,
                self.world,
                device=self.device,
                is_balanced=is_balanced(self.config),
                sequence_size=self.config.trainer.ulysses_sequence_parallel_size,
                tensor_size=tensor_size(self.config),
                num_stages=num_stages(self.config),
                is_by_tokens=self.config.trainer.megatron.sequence_parallel,
                is_grouped=True,
            )
            tokenizer = load_tokenizer(self.config.model)
            self._worker = ActorWorker(self.config, tokenizer=tokenizer, total_steps=total_steps, ranks=ranks)

    # --------------------------------------------------------------------- work
    @property
    def worker(self) -> ActorWorker:
        """The worker of this rank, available after `prepare`."""
        assert self._worker is not None, "prepare() comes first"
        return self._worker

    def train_step(self, experiences: Sequence[Experience], step: int) -> dict[str, float]:
        """Train on this rank's rows; see `TrainerBackend.train_step`."""
        with self._together(f"training step {step}"):
            return self.worker.train_step(experiences, step)

    def share_weights(self, objects: Objects) -> ObjectRef | None:
        """Gather the full weights; store them in `objects` on the first rank.

        Every rank calls this. An adapter is merged. The first rank returns the reference and drops that of the previous
        call; the others return None.
        """
        with self._together("gathering the weights"):
            worker = self.worker
            worker.actor.stepper.refresh()
            weights = full_weights(
                worker.model,
                worker.adapter,
                worker.ranks,
                only_trained_names=True,
                stages=worker.actor.decoder.stages,
            )
        if self._held is not None:
            self._held.drop()
        self._held = objects.put(weights) if self.rank == 0 else None
        return self._held

    def save(self, folder: Path, *, hf: bool) -> None:
        """Write this rank's part of a checkpoint; see `TrainerBackend.save`."""
        with self._together(f"writing {folder}"):
            self.worker.save(folder, hf=hf)

    def load(self, folder: Path) -> None:
        """Restore this rank from a checkpoint; see `TrainerBackend.load`.

        Any number of ranks may have written the checkpoint.
        """
        with self._together(f"reading {folder}"):
            self.worker.load(folder)

    def facts(self) -> tuple[dict[str, str], bool]:
        """Return path and hash of the reference, and the worker's health."""
        return self.worker.reference_facts(), self.worker.is_healthy

    def memory_table(self) -> dict[str, int]:
        """Return the memory of this rank in bytes, by its use."""
        return self.worker.memory_table()

    def leave(self) -> None:
        """Close the connections to the other ranks without waiting for them."""
        if self._held is not None:
            self._held.drop()
        if distributed.is_initialized():
            distributed.destroy_process_group()

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Turn errors caused by a lost rank into `RankError`; pass on others.

        Raises:
            RankError: the other ranks did not answer (E5682).
        """
        start = time.monotonic()
        try:
            yield
        except TrinityError:
            raise
        except RuntimeError as error:
            text = str(error)
            if not isinstance(error, distributed.DistError) and not any(word in text.lower() for word in LOST):
                raise
            raise RankError(
                f"rank {self.rank} of {self.world} lost another rank after {time.monotonic() - start:.1f} s of {what} "
                f"({text.splitlines()[0]}); a wait for another rank may take {TIMEOUT_KEY} {self.patience_s:g} s"
            ) from error


def is_balanced(config: Config) -> bool:
    """Return whether rows are divided so that ranks have equal work."""
    return config.trainer.balance_batch
