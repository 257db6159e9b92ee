"""The workflows' handles of the models of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trinity.common.models.model import ModelWrapper

if TYPE_CHECKING:
    from trinity.common.config import Config, InferenceModelConfig
    from trinity.common.models.clients import ClientSource
    from trinity.common.models.inference_model import InferenceModel


def auxiliary_wrappers(
    config: Config, engines: Sequence[InferenceModel], endpoint: ClientSource | None = None
) -> list[ModelWrapper]:
    """Return the workflows' handle of each auxiliary model.

    The order is that of `explorer.auxiliary_models`.
    """
    sections = config.explorer.auxiliary_models
    return [
        wrapper(config, engine, section, endpoint=endpoint) for engine, section in zip(engines, sections, strict=True)
    ]


def wrapper(
    config: Config,
    engine: InferenceModel,
    section: InferenceModelConfig | None = None,
    *,
    endpoint: ClientSource | None = None,
) -> ModelWrapper:
    """Return the workflows' handle of a model.

    Args:
        config: of the run.
        engine: the model.
        section: of an auxiliary model; None: the rollout model's.
        endpoint: gives OpenAI clients; of the rollout model where `enable_openai_api` asks for them.
    """
    asks = section is not None or config.explorer.rollout_model.enable_openai_api
    return ModelWrapper(engine, config=config, rollout_config=section, clients=endpoint if asks else None)
