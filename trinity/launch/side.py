"""What both sides of a run share.

These are their components, their monitors, and an end that closes everything.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from trinity.common.config.resolved import monitors
from trinity.common.config.showing import plain_values
from trinity.launch.facts import process_facts
from trinity.launch.samples import rollouts_of
from trinity.monitor.headline import TOTAL_STEPS
from trinity.monitor.monitor import Monitor
from trinity.synchronizer.folder import FolderSynchronizer, TrainerNews
from trinity.synchronizer.schedule import sync_schedule
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.buffer.store.types import Fates
    from trinity.common.config import Config
    from trinity.launch.samples import LatestRollout
    from trinity.runtime.base import Runtime
    from trinity.synchronizer.base import Synchronizer

logger = get_logger("launch")

MetricsListener = Callable[[str, int, Mapping[str, float]], None]
RolloutsListener = Callable[["list[LatestRollout]", str], None]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Ending(Protocol):
    """What a stage stops and closes."""

    async def request_stop(self) -> None:
        """Let it end early."""

    async def close(self) -> None:
        """Close everything; also after a failure."""


class Computing(Protocol):
    """What computes for a stage."""

    async def facts(self) -> dict[str, Any]:
        """Return what decides float results in its process."""


class StageSide(Ending, Computing, Protocol[R_co]):
    """A side as the stage sees it, in this process or another.

    Its `run` returns what it did.
    """

    async def prepare(
        self,
        synchronizer: Synchronizer | None = None,
        *,
        resume: Path | None = None,
        explore_steps: int | None = None,
    ) -> int | None:
        """Load and connect everything; return the steps that the side plans.

        Args:
            synchronizer: between the sides, or a handle of it; None: the side is alone, or they run apart.
            explore_steps: steps that the explorer beside this side plans; the trainer reads it.
        """

    async def run(self) -> R_co:
        """Run to the end; return what was done."""

    async def untrained(self) -> tuple[int, int]:
        """Return how many experiences are not trained, and of how many."""

    async def fates(self) -> Fates | None:
        """Return what happened to the rollouts; None: it has no store."""

    async def served(self) -> ServedAt | None:
        """Return where callers are answered; None: nowhere."""


@dataclass(frozen=True)
class ServedAt:
    """Where mode serve answers.

    Attributes:
        address: `http://host:port`.
        token: that callers send; None: the one that is written in the configuration.
    """

    address: str
    token: str | None


@dataclass(frozen=True)
class ProcessSpec:
    """Resources of a side's process, if it has its own.

    Attributes:
        name: of the process.
        num_gpus: that it computes on; a part of one is shared.
    """

    name: str
    num_gpus: float = 0.0


class Side(ABC, Generic[R]):
    """One side of a stage: prepared, run and closed.

    `close` is called also after a failure.

    It may have a monitor and a store, which its end closes after all else.

    Args:
        config: resolved configuration of the stage.
        runtime: places what needs a process of its own.
        store: an open store that the caller closes; None lets the side open one of its own.
        on_metrics: called with actor name, step and values of every logged line.
        has_process: the side has this process for itself: what preparation needs is imported at once, and the metrics
            lines are kept until `metrics` takes them.
    """

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        *,
        store: ExperienceStore | None = None,
        on_metrics: MetricsListener | None = None,
        has_process: bool = False,
    ) -> None:
        self.config = config
        self.runtime = runtime
        self._store = store
        self._owns_store = store is None
        self._on_metrics = self._keep if has_process else on_metrics
        self._lines: list[tuple[str, int, dict[str, float]]] = []
        self._monitor: Monitor | None = None
        self._is_stopped = False
        if has_process:
            self.load()

    async def facts(self) -> dict[str, Any]:
        """Return what decides float results in this process."""
        return process_facts()

    @abstractmethod
    async def prepare(
        self,
        synchronizer: Synchronizer | None = None,
        *,
        resume: Path | None = None,
        explore_steps: int | None = None,
    ) -> int | None:
        """Load and connect everything; see `StageSide`."""

    @abstractmethod
    async def run(self) -> R:
        """Run to the end; return what was done."""

    @abstractmethod
    async def request_stop(self) -> None:
        """Let the side end early."""

    @abstractmethod
    async def close(self) -> None:
        """Close everything; also after a failure."""

    @classmethod
    @abstractmethod
    def process(cls, config: Config) -> ProcessSpec:
        """Return the resources that the side's own process needs."""

    @classmethod
    @abstractmethod
    def load(cls) -> None:
        """Import what preparation needs, in parallel with other processes.

        This takes seconds.
        """

    async def untrained(self) -> tuple[int, int]:
        """Return how many stored experiences are untrained, and of how many."""
        if self._store is None:
            return 0, 0
        from trinity.explorer.assembly import experience_buffer, store_scope

        counts = self._store.counts(experience_buffer(self.config), **store_scope(self.config))
        left = counts["ready"] + counts["claimed"]
        return left, left + counts["trained"]

    async def fates(self) -> Fates | None:
        """Return what happened to the rollouts; None: it has no store.

        Raises:
            StoreError: the numbers do not add up (E5213).
        """
        if self._store is None:
            return None
        from trinity.explorer.assembly import experience_buffer, store_scope

        return self._store.fates(experience_buffer(self.config), **store_scope(self.config))

    async def served(self) -> ServedAt | None:
        """Return where callers are answered; None: nowhere."""
        return None

    def _keep(self, actor: str, step: int, values: Mapping[str, float]) -> None:
        self._lines.append((actor, step, dict(values)))

    async def metrics(self) -> list[tuple[str, int, dict[str, float]]]:
        """Return the lines kept since the last call: actor, step and values."""
        lines, self._lines = self._lines, []
        return lines

    async def rollouts(self) -> list[LatestRollout]:
        """Return the newest rollouts; none where none are kept.

        Raises:
            EnvironmentProblem: the database cannot be read (E3435).
            DataError: a payload cannot be read (E5101).
        """
        read = rollouts_of(self.config)
        return [] if read is None else await asyncio.to_thread(read)

    def _tell_total(self, actor: str, total: int | None, *, step: int) -> None:
        """Report the planned number of explorer or training steps, if known."""
        if total is not None and self._on_metrics is not None:
            self._on_metrics(actor, step, {TOTAL_STEPS: total})

    async def _close(self, closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Call the closers, then close the monitor and the side's own store.

        Raises:
            Exception: the first failure to close.
        """
        try:
            await close_all(closers)
        finally:
            if self._monitor is not None:
                self._monitor.close()
            if self._store is not None and self._owns_store:
                self._store.close()


def open_monitor(config: Config, actor: str, listener: MetricsListener | None) -> Monitor:
    """Return the monitor of one actor of a job."""
    return Monitor(
        Path(config.checkpoint_job_dir),
        project=config.project,
        name=config.name,
        actor=actor,
        monitor_type=monitors(config),
        monitor_args=config.monitor.monitor_args,
        hyperparameters=plain_values(config),
        group=config.group,
        verl_names=config.monitor.verl_names,
        listener=listener,
    )


def folder_synchronizer(config: Config, store: ExperienceStore, *, trainer: str = "") -> FolderSynchronizer:
    """Return the synchronizer of a part that runs apart from the others.

    Args:
        config: resolved configuration of the part.
        store: the open store of the job.
        trainer: name of the part, on the trainer's side.
    """
    from trinity.algorithm.planning import num_rollouts
    from trinity.explorer.assembly import experience_buffer, store_scope

    schedule = sync_schedule(config)
    news = TrainerNews(
        name=trainer,
        interval=schedule.trainer_interval,
        offset=schedule.offset,
        rollouts_per_step=num_rollouts(config),
    )
    return FolderSynchronizer(
        Path(config.checkpoint_job_dir),
        store,
        buffer=experience_buffer(config),
        scope=store_scope(config),
        timeout_s=config.synchronizer.sync_timeout,
        news=news,
    )


async def close_all(closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call every closer in turn, whatever the others do.

    Raises:
        Exception: the first failure, after all were called.
    """
    first: Exception | None = None
    for close in closers:
        try:
            await close()
        except Exception as error:  # noqa: BLE001  plugins are closed here; the others must be closed all the same
            logger.warning("%s failed: %s", getattr(close, "__qualname__", close), error)
            first = first or error
    if first is not None:
        raise first


async def end_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel every unfinished task and await its end, ignoring errors."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
