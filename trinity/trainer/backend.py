"""The interface of a trainer back end, and the back end of one worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.runtime.worker_thread import WorkerThread
from trinity.trainer.verl.worker import ActorWorker


@runtime_checkable
class TrainerBackend(Protocol):
    """Model and optimizer, here or in other processes; one call at a time."""

    def reference(self) -> dict[str, str]:
        """Return path and hash of the reference model; empty if none is loaded."""

    def is_healthy(self) -> bool:
        """Return whether the last optimizer steps were taken, none skipped.

        A step is skipped if its gradient is not finite.
        """

    async def prepare(self, total_steps: int | None) -> None:
        """Load the model for a run of `total_steps` training steps.

        `total_steps` is None if only the data determine it.

        Raises:
            EnvironmentProblem: the model cannot be loaded.
        """

    async def train_step(self, experiences: Sequence[Experience], step: int) -> dict[str, float]:
        """Train on `experiences` as step `step` (1-based); return metrics.

        Raises:
            OutOfMemoryError: with the memory table and the keys to change.
            NumericError: gradients were not finite in several steps in a row.
            DataError: an experience cannot be trained on.
        """

    async def weights(self) -> Mapping[str, Tensor]:
        """Return the weights by Hugging Face name; the next step may change them."""

    async def save(self, folder: Path, *, hf: bool) -> None:
        """Write the back end's part of a checkpoint into `folder`.

        With `hf`, also write the weights as safetensors.
        """

    async def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote into `folder`.

        Raises:
            CheckpointError: the state does not fit the model or the configuration.
        """

    async def close(self) -> None:
        """Release threads and processes; wait for a running call, or end it."""


class LocalBackend:
    """Back end of one worker in a thread of this process.

    Args:
        config: resolved configuration of the stage.
        tokenizer: saved in checkpoints.
    """

    def __init__(self, config: Config, *, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._worker: ActorWorker | None = None
        self._thread = WorkerThread(f"{config.trainer.name}-worker")

    @property
    def worker(self) -> ActorWorker:
        """The worker, available after `prepare`."""
        assert self._worker is not None, "prepare() comes first"
        return self._worker

    def reference(self) -> dict[str, str]:
        """Return path and hash of the reference model; see `TrainerBackend`."""
        return self.worker.reference_facts()

    def is_healthy(self) -> bool:
        """Return whether the last steps were taken; see `TrainerBackend`."""
        return self.worker.is_healthy

    async def prepare(self, total_steps: int | None) -> None:
        """Load the model; see `TrainerBackend`."""
        self._worker = await self._call(ActorWorker, self.config, tokenizer=self.tokenizer, total_steps=total_steps)

    async def train_step(self, experiences: Sequence[Experience], step: int) -> dict[str, float]:
        """Train in the worker's thread; see `TrainerBackend`."""
        metrics: dict[str, float] = await self._call(self.worker.train_step, experiences, step)
        return metrics

    async def weights(self) -> Mapping[str, Tensor]:
        """Return the live weights; the next step changes them."""
        return self.worker.weights()

    async def save(self, folder: Path, *, hf: bool) -> None:
        """Write the worker's part of a checkpoint; see `TrainerBackend`."""
        await self._call(self.worker.save, folder, hf=hf)

    async def load(self, folder: Path) -> None:
        """Restore the worker from a checkpoint; see `TrainerBackend`."""
        await self._call(self.worker.load, folder)

    async def close(self) -> None:
        """End the worker's thread; see `TrainerBackend`."""
        await self._thread.end()

    async def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._thread.call(function, *args, **kwargs)


def run_on(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    """Run a coroutine on `loop` from another thread and return its result.

    The wait has no deadline of its own; those inside the coroutine end it.
    """
    return asyncio.run_coroutine_threadsafe(work, loop).result()
