"""One stage: its sides, their life, and what is left when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.checkpoint import CheckpointStore
from trinity.common.constants import Mode
from trinity.common.errors import ExitCode, StarvedError
from trinity.launch.bench import BenchSide
from trinity.launch.explorer_side import ExplorerSide
from trinity.launch.parts import part_of
from trinity.launch.placement import LocalPlacement, Placement
from trinity.launch.rewind import is_foreign, rewound
from trinity.launch.serve_side import ServeSide
from trinity.launch.side import (
    Computing,
    Ending,
    MetricsListener,
    RolloutsListener,
    ServedAt,
    StageSide,
    close_all,
    end_all,
)
from trinity.launch.stop import StopSignal
from trinity.launch.trainer_side import TrainerSide
from trinity.utils.log import get_logger, logged_to_file

if TYPE_CHECKING:
    from trinity.buffer.store.types import Fates
    from trinity.common.config import Config

logger = get_logger("launch")

FactsListener = Callable[[Mapping[str, Any]], None]
ServedListener = Callable[[ServedAt], None]


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
        evaluations: of mode bench, the metrics by training step.
        fates: what happened to the rollouts, those of other processes included; None where there are none.
    """

    name: str | None
    job_dir: Path
    seconds: float = 0.0
    training_step: int = 0
    explore_step: int = 0
    is_resumed: bool = False
    stopped: ExitCode | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    fates: Fates | None = None


class Stage:
    """Builds the sides of one stage, runs them to their end, and closes them.

    Args:
        config: resolved configuration of the stage.
        name: stage name.
        stop: the signal context of the process.
        on_metrics: called with actor name, step and values of every logged line.
        on_rollouts: called with the newest rollouts, or why there are none, where another process reads them.
        on_facts: called with what decides float results where the stage computes, before anything is loaded; it may
            refuse them.
        on_served: called with where mode serve answers, once it does.
        place: where the sides are; None: in this process.

    Attributes:
        has_begun: its sides are ready, and at work.
    """

    def __init__(
        self,
        config: Config,
        *,
        name: str | None,
        stop: StopSignal,
        on_metrics: MetricsListener | None = None,
        on_rollouts: RolloutsListener | None = None,
        on_facts: FactsListener | None = None,
        on_served: ServedListener | None = None,
        place: Placement | None = None,
    ) -> None:
        self.config = config
        self.name = name
        self.stop = stop
        self.on_metrics = on_metrics
        self.on_rollouts = on_rollouts
        self.on_facts = on_facts
        self.on_served = on_served
        self.job_dir = Path(config.checkpoint_job_dir)
        self.place: Placement = place or LocalPlacement(config)
        self.has_begun = False
        self._was_here = False

    async def run(self) -> StageResult:
        """Run the stage; return what it did.

        Raises:
            TrinityError: the first failure of a side, after the other was ended.
        """
        started, config = time.monotonic(), self.config
        result = StageResult(self.name, self.job_dir)
        self._was_here = (self.job_dir / "log").is_dir()
        try:
            with self._logged():
                if config.mode == Mode.TRAIN:
                    await self._train_only(result)
                elif config.mode == Mode.EXPLORE:
                    await self._explore_only(result)
                elif config.mode == Mode.SERVE:
                    await self._serve(result)
                elif config.mode == Mode.BENCH:
                    await self._bench(result)
                else:
                    await self._explore_and_train(result)
        finally:
            self.stop.on_stop(None)
            await self.place.close()
            result.seconds = time.monotonic() - started
        result.stopped = self.stop.code
        return result

    async def _resumed(self, side: StageSide[Any], result: StageResult) -> Path | None:
        """Return the checkpoint that the trainer continues from, and tell.

        The facts of the side's process are checked first: if they differ from those that the run began with, the folder
        stays as it was.
        """
        await self._check_facts(side)
        resume = self._checkpoint()
        result.is_resumed = resume is not None
        if resume is not None and self._was_here:
            logger.info("continuing from step %s (%s)", resume.name.rsplit("_", 1)[-1], resume)
        elif self._was_here:
            logger.info("continuing from step 0: %s has no checkpoint yet", self.job_dir)
        return resume

    def _checkpoint(self) -> Path | None:
        """Return the checkpoint that the trainer continues from.

        Leftovers of interrupted writes are removed first.
        """
        checkpoints = CheckpointStore(self.job_dir)
        checkpoints.clean()
        if (published := self.job_dir / "weights").is_dir():
            from trinity.common.weights.files import remove_unfinished  # with torch: a driver needs it for nothing else

            remove_unfinished(published)
        verl = self.config.trainer.trainer_config.trainer
        if verl.resume_mode == "resume_path":
            path = Path(str(verl.resume_from_path))
            if not is_foreign(checkpoints, path):
                return rewound(checkpoints, path)
            from trinity.launch.conversion.adoption import adopted  # with torch: a driver needs it for nothing else

            return adopted(self.config, checkpoints, path)
        return checkpoints.latest() if self.config.continue_from_checkpoint else None

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Write the logs of the run and its sides into the job's folder."""
        with contextlib.ExitStack() as stack:
            for file, logger_name in self.place.log_files().items():
                stack.enter_context(logged_to_file(logger_name, file))
            yield

    # ------------------------------------------------------------------- modes
    async def _train_only(self, result: StageResult) -> None:
        trainer = await self.place.side(TrainerSide, on_metrics=self.on_metrics)
        async with _closing([trainer]):
            await trainer.prepare(resume=await self._resumed(trainer, result))
            self._stop_with(trainer)
            result.training_step = (await trainer.run()).step
            result.fates = await trainer.fates()
            self._check_trained(result)
            if part_of(self.config) is not None:
                await self._tell_untrained(trainer)

    async def _explore_only(self, result: StageResult) -> None:
        explorer = await self.place.side(ExplorerSide, on_metrics=self.on_metrics, on_rollouts=self.on_rollouts)
        async with _closing([explorer]):
            await self._check_facts(explorer)
            await explorer.prepare()
            self._stop_with(explorer)
            result.explore_step = (await explorer.run()).step
            result.fates = await explorer.fates()

    async def _serve(self, result: StageResult) -> None:
        side = await self.place.side(ServeSide, on_metrics=self.on_metrics, on_rollouts=self.on_rollouts)
        async with _closing([side]):
            await self._check_facts(side)
            await side.prepare()
            self._stop_with(side)
            served = await side.served()
            if self.on_served is not None and served is not None:
                self.on_served(served)
            result.explore_step = (await side.run()).step
            result.fates = await side.fates()

    async def _bench(self, result: StageResult) -> None:
        bench = BenchSide(self.config, self.place.runtime, on_metrics=self.on_metrics)
        async with _closing([bench]):
            await self._check_facts(bench)
            await bench.prepare()
            self._stop_with(bench)
            result.evaluations = await bench.run()
            result.training_step = max(result.evaluations, default=0)

    async def _explore_and_train(self, result: StageResult) -> None:
        with self.place.shared_store() as store:
            shared: dict[str, Any] = {"store": store, "on_metrics": self.on_metrics}
            # Processes start, and import what they need, side by side; the explorer's start more of them.
            making = asyncio.ensure_future(self.place.side(TrainerSide, **shared))
            sides: list[Ending] = []
            async with _closing(sides), _ended(making):
                explorer, synchronizer = await asyncio.gather(
                    self.place.side(ExplorerSide, on_rollouts=self.on_rollouts, **shared), self.place.synchronizer()
                )
                sides.append(explorer)
                resume = await self._resumed(explorer, result)
                explore_steps = await explorer.prepare(synchronizer, resume=resume)
                trainer = await making
                sides.append(trainer)
                await trainer.prepare(synchronizer, resume=resume, explore_steps=explore_steps)
                exploring = asyncio.create_task(explorer.run(), name=self.config.explorer.name)
                training = asyncio.create_task(trainer.run(), name=self.config.trainer.name)
                self._stop_with(trainer, explorer)
                await self._join(exploring, training, until_lost=self.place.wait_lost())
                result.explore_step = exploring.result().step
                result.training_step = training.result().step
                result.fates = await trainer.fates()
                self._check_trained(result)
                await self._tell_untrained(trainer)

    async def _check_facts(self, side: Computing) -> None:
        if self.on_facts is not None:
            self.on_facts(await side.facts())

    def _check_trained(self, result: StageResult) -> None:
        """Refuse to call a stage complete that has trained nothing.

        It leaves no model to those that come after it.

        Raises:
            StarvedError: no training step was made, and nobody stopped the stage (E5403).
        """
        if self.stop.code is not None or result.training_step:
            return
        fates = "" if result.fates is None else f" (rollouts: {result.fates})"
        raise StarvedError(
            f"the explorer is finished and no training step was made{fates}: rollouts that fail or that operators drop "
            "are not trained on, and there is no checkpoint and no model to continue with; `trinity show` and the log "
            "say what happened to them. Look at rewards and operators (data_processor.experience_pipeline); then "
            "continue with more tasks (a greater buffer.total_steps or total_epochs), or begin again under another "
            "`name`",
            code="E5403",
        )

    async def _tell_untrained(self, trainer: StageSide[Any]) -> None:
        """Warn of experiences that were never trained on."""
        if self.stop.code is not None:
            return
        left, total = await trainer.untrained()
        if left:
            logger.warning(
                "%d of %d experiences were explored and not trained: the planned steps ended before; raise "
                "buffer.train_batch_size (now %s) or trainer.total_steps",
                left,
                total,
                self.config.buffer.train_batch_size,
            )

    async def _join(
        self, exploring: asyncio.Task[Any], training: asyncio.Task[Any], *, until_lost: Coroutine[Any, Any, None]
    ) -> None:
        """Wait for both loops.

        When one fails, or something they need is lost, end the others and raise the first failure.

        A loop that is in a long rollout or training step would hear of the loss only after it.
        """
        losing = asyncio.create_task(until_lost, name="synchronizer_lost")
        both = asyncio.gather(exploring, training)
        try:
            await asyncio.wait((both, losing), return_when=asyncio.FIRST_COMPLETED)
            (both if both.done() else losing).result()
        finally:
            for task in (exploring, training, losing):
                task.cancel()
            await asyncio.gather(exploring, training, losing, both, return_exceptions=True)

    def _stop_with(self, *sides: Ending) -> None:
        """Make a signal abandon the rollouts and end training after its step.

        Called once the sides are ready.
        """
        self.has_begun = True
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []

        def end() -> None:
            ending.extend(asyncio.ensure_future(side.request_stop()) for side in reversed(sides))

        def end_soon() -> None:
            loop.call_soon_threadsafe(end)

        self.stop.on_stop(end_soon)


@contextlib.asynccontextmanager
async def _closing(sides: Sequence[Ending]) -> AsyncIterator[None]:
    """Close the sides, and those added meanwhile, at the end.

    A failure to close is raised only if nothing failed before.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # it is logged
            await close_all(side.close for side in sides)
        raise
    await close_all(side.close for side in sides)


@contextlib.asynccontextmanager
async def _ended(task: asyncio.Future[Any]) -> AsyncIterator[None]:
    """End an unfinished task at the end."""
    try:
        yield
    finally:
        await end_all((task,))
