"""From a configuration to an inference engine."""

from __future__ import annotations

from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig
from trinity.common.errors import NotAvailableError
from trinity.common.models.model import InferenceModel
from trinity.common.models.torch_engine.engine import TorchEngine
from trinity.common.models.torch_engine.settings import engine_settings


def create_inference_model(config: Config) -> InferenceModel:
    """Return the engine of the rollout model, not yet prepared.

    Raises:
        NotAvailableError: `engine_type` is neither auto nor torch, or more than one engine or device is asked for.
    """
    _check(config.explorer.rollout_model, key="explorer.rollout_model")
    return TorchEngine(engine_settings(config))


def create_auxiliary_models(config: Config) -> list[InferenceModel]:
    """Return the engines of the auxiliary models, not yet prepared.

    Raises:
        NotAvailableError: as for `create_inference_model`.
    """
    engines: list[InferenceModel] = []
    for index, model in enumerate(config.explorer.auxiliary_models):
        _check(model, key=f"explorer.auxiliary_models[{index}]")
        engines.append(TorchEngine(engine_settings(config, model)))
    return engines


def _check(rollout: InferenceModelConfig, *, key: str) -> None:
    if rollout.engine_type not in ("auto", "torch"):
        raise NotAvailableError(
            f"{key}.engine_type: only auto and torch are available in this version, got {rollout.engine_type!r}; "
            f"use --set {key}.engine_type=torch"
        )
    for name, value in (("engine_num", rollout.engine_num), ("tensor_parallel_size", rollout.tensor_parallel_size)):
        if value != 1:
            raise NotAvailableError(f"{key}.{name}: the torch engine is one engine on one device, got {value}; use 1")
