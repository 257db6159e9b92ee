"""The accuracy that training began with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trinity.engine.create import create_inference_model
from trinity.explorer.assembly import build_eval_tasksets, build_scheduler
from trinity.explorer.evaluator import Evaluator
from trinity.monitor import headline

if TYPE_CHECKING:
    from trinity.common.config import Config


def initial_accuracy(config: Config) -> float | None:
    """Return the accuracy of `config`'s model on its evaluation tasksets.

    Returns None if there are no evaluation tasksets.

    Args:
        config: resolved configuration of a stage that evaluates.
    """
    return headline.accuracy(asyncio.run(_evaluate(config)))


async def _evaluate(config: Config) -> dict[str, float]:
    engine = create_inference_model(config)
    await engine.prepare()
    scheduler = build_scheduler(config, engine)
    try:
        return await Evaluator(build_eval_tasksets(config), scheduler).evaluate(0)
    finally:
        scheduler.close()
        await engine.shutdown()
