"""Mode bench: the evaluation of the checkpoints that a job has written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.checkpoint import CheckpointStore
from trinity.common.constants import BENCH
from trinity.common.errors import CheckpointError
from trinity.launch.facts import process_facts
from trinity.launch.side import MetricsListener, close_all, end_all, open_monitor
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel
    from trinity.explorer.evaluator import Evaluator
    from trinity.explorer.scheduler import Scheduler
    from trinity.monitor.monitor import Monitor
    from trinity.runtime.base import Runtime

logger = get_logger("explorer")


class BenchSide:
    """Evaluates the checkpoints of a job on its `eval_tasksets`.

    It evaluates every checkpoint, or only the latest.

    The metrics are those of an evaluation under `bench/`; their step is the training step of the checkpoint. With
    `explorer.eval_on_startup` the model from which training began comes first, as step 0. A model behind a server
    (`engine_type: external`) is evaluated alone, as step 0.

    Args:
        config: resolved configuration of the stage.
        runtime: places what needs a process of its own.
        on_metrics: called with actor name, step and values of every logged line.
    """

    def __init__(self, config: Config, runtime: Runtime, *, on_metrics: MetricsListener | None = None) -> None:
        self.config = config
        self.runtime = runtime
        self.results: dict[int, dict[str, float]] = {}
        self._on_metrics = on_metrics
        self._checkpoints = CheckpointStore(Path(config.checkpoint_job_dir))
        self._engines: list[InferenceModel] = []
        self._monitor: Monitor | None = None
        self._scheduler: Scheduler | None = None
        self._evaluator: Evaluator | None = None
        self._evaluating: asyncio.Task[dict[int, dict[str, float]]] | None = None

    async def facts(self) -> dict[str, Any]:
        """Return what decides float results in this process."""
        return process_facts()

    async def prepare(self) -> None:
        """Load the engines and the tasks.

        Raises:
            TrinityError: a model or a dataset cannot be used, or there is nothing to evaluate.
        """
        from trinity.engine.create import create_auxiliary_models, create_inference_model
        from trinity.explorer.assembly import build_evaluator, build_scheduler, runner_place

        config, steps = self.config, list(self._steps())
        if not steps:
            raise CheckpointError(
                f"mode bench: {self._checkpoints.job_dir} holds no checkpoint; check project and name, or write "
                "`explorer.eval_on_startup: true` to evaluate the model as it is",
                code="E7042",
            )
        if steps == [0] and config.explorer.rollout_model.engine_type != "external":
            logger.info(
                "%s holds no checkpoint: the initial model %s alone is evaluated",
                self._checkpoints.job_dir,
                config.model.model_path,
            )
        engine = create_inference_model(config, self.runtime)
        self._engines = [engine, *create_auxiliary_models(config, self.runtime)]
        place = runner_place(config, engine, self._engines[1:], self.runtime)
        if place is not None:
            place.begin()
        for each in self._engines:
            await each.prepare()
        self._scheduler = await asyncio.to_thread(
            build_scheduler, config, engine, auxiliary=self._engines[1:], place=place
        )
        self._evaluator = await asyncio.to_thread(build_evaluator, config, self._scheduler)
        self._monitor = open_monitor(config, BENCH, self._on_metrics)
        self._monitor.truncate({"lines": 0, "samples": 0})

    async def run(self) -> dict[int, dict[str, float]]:
        """Evaluate to the end or until `request_stop`.

        Return the metrics by training step.

        Raises:
            TrinityError: a checkpoint cannot be read, or the engine failed.
        """
        self._evaluating = asyncio.ensure_future(self._evaluate_all())
        try:
            await asyncio.wait((self._evaluating,))
        finally:
            await end_all((self._evaluating,))
        return self.results if self._evaluating.cancelled() else self._evaluating.result()

    async def request_stop(self) -> None:
        """Abandon the evaluation under way."""
        if self._evaluating is not None:
            self._evaluating.cancel()

    async def close(self) -> None:
        """Close runners and engines, whatever the others do.

        Raises:
            Exception: the first failure to close.
        """
        if self._scheduler is not None:
            self._scheduler.close()
        try:
            await close_all(engine.shutdown for engine in self._engines)
        finally:
            if self._monitor is not None:
                self._monitor.close()

    async def _evaluate_all(self) -> dict[int, dict[str, float]]:
        from trinity.trainer.verl.loading import checkpoint_weights

        assert self._evaluator is not None and self._monitor is not None, "prepare() comes first"
        engine = self._engines[0]
        for step in self._steps():
            if step:
                checkpoint = self._checkpoints.job_dir / f"global_step_{step}"
                weights = await asyncio.to_thread(checkpoint_weights, checkpoint, self.config)
                await engine.update_weights(weights, version=step)
            metrics = await self._evaluator.evaluate(step, prefix=BENCH)
            self._monitor.log(metrics | {"bench/model_version": step}, step=step)
            self.results[step] = metrics
            logger.info("evaluated %s", f"the checkpoint of step {step}" if step else "the initial model")
        return self.results

    def _steps(self) -> Iterator[int]:
        """Yield the training steps to evaluate.

        0 is the initial model, or the model behind a server.
        """
        if self.config.explorer.rollout_model.engine_type == "external":
            yield 0
            return
        if self.config.explorer.eval_on_startup:
            yield 0
        if self.config.explorer.bench_on_latest_checkpoint:
            latest = self._checkpoints.latest()
            yield from () if latest is None else (int(latest.name.rpartition("_")[2]),)
        else:
            yield from self._checkpoints.steps()
