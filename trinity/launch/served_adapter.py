"""The adapter that a model has before training, in an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel


async def serve_adapter(config: Config, engine: InferenceModel) -> None:
    """Load the model with its existing adapter into the engine, as version 0.

    Training starts from it. Without such an adapter nothing is done.
    """
    if all(adapter.path is None for adapter in config.model.lora_configs or ()):
        return
    from trinity.trainer.verl.loading import initial_weights

    weights: Mapping[str, Tensor] = await asyncio.to_thread(initial_weights, config)
    await engine.update_weights(weights, version=0)
