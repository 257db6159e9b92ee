"""Real rollouts in tests: the torch engine over a tiny model, and a scheduler over the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.tiny import tiny_model
from trinity.common.config import Config
from trinity.common.models import ModelWrapper, create_inference_model
from trinity.common.workflows import Task
from trinity.explorer.outcome import BatchResult
from trinity.explorer.scheduler import Scheduler, SchedulerSettings

DEFAULTS: dict[str, Any] = {"num_runners": 4, "max_timeout": 20.0, "max_retry_times": 1}


class Rollouts:
    """Runs batches of tasks, each on an engine of its own.

    Args:
        folder: where the tiny model is written.
    """

    def __init__(self, folder: Path) -> None:
        self.model_path = folder / "model"
        tiny_model(self.model_path)

    def config(self, **top_level: Any) -> Config:
        """Return a configuration of the tiny model in float32."""
        return Config.model_validate(
            {
                "model": {
                    "model_path": str(self.model_path),
                    "max_model_len": 96,
                    "max_prompt_tokens": 64,
                    "max_response_tokens": 16,
                },
                "explorer": {"rollout_model": {"dtype": "float32", "seed": 3}, "max_timeout": 60},
                "algorithm": {"repeat_times": 2},
            }
            | top_level
        )

    @asynccontextmanager
    async def scheduler(self, **settings: Any) -> AsyncIterator[Scheduler]:
        """Give a scheduler over a prepared engine; both end with the context."""
        config = self.config(deterministic=bool(settings.get("is_deterministic")))
        engine = create_inference_model(config)
        await engine.prepare()
        scheduler = Scheduler(
            engine, ModelWrapper(engine, config=config), settings=SchedulerSettings(**DEFAULTS | settings)
        )
        try:
            yield scheduler
        finally:
            scheduler.close()
            await engine.shutdown()

    def run(self, tasks: Sequence[Task], *, batch: int | str = 1, **settings: Any) -> BatchResult:
        """Return the outcomes of one batch."""

        async def scenario() -> BatchResult:
            async with self.scheduler(**settings) as scheduler:
                return await scheduler.schedule(tasks, batch=batch)

        return asyncio.run(scenario())
