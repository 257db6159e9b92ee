"""From a configuration to an inference engine."""

from __future__ import annotations

from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig
from trinity.common.errors import NotAvailableError
from trinity.common.models.external_model import ExternalModel, external_settings
from trinity.common.models.model import InferenceModel
from trinity.common.models.torch_engine.engine import TorchEngine
from trinity.common.models.torch_engine.settings import engine_settings


def create_inference_model(config: Config) -> InferenceModel:
    """Return the engine of the rollout model, not yet prepared.

    Raises:
        NotAvailableError: another `engine_type` than auto, torch and external, or more than one engine or device.
    """
    section, key = config.explorer.rollout_model, "explorer.rollout_model"
    if section.engine_type == "external":
        return ExternalModel(external_settings(config, section, key=key))
    _check(section, key=key)
    return TorchEngine(engine_settings(config))


def create_auxiliary_models(config: Config) -> list[InferenceModel]:
    """Return the engines of the auxiliary models, not yet prepared.

    Raises:
        NotAvailableError: as for `create_inference_model`.
    """
    engines: list[InferenceModel] = []
    for index, model in enumerate(config.explorer.auxiliary_models):
        key = f"explorer.auxiliary_models[{index}]"
        if model.engine_type == "external":
            engines.append(ExternalModel(external_settings(config, model, key=key)))
            continue
        _check(model, key=key)
        engines.append(TorchEngine(engine_settings(config, model)))
    return engines


def _check(rollout: InferenceModelConfig, *, key: str) -> None:
    if rollout.engine_type not in ("auto", "torch"):
        raise NotAvailableError(
            f"{key}.engine_type: only auto, torch and external are available in this version, got "
            f"{rollout.engine_type!r}; use --set {key}.engine_type=torch"
        )
    for name, value in (("engine_num", rollout.engine_num), ("tensor_parallel_size", rollout.tensor_parallel_size)):
        if value != 1:
            raise NotAvailableError(f"{key}.{name}: the torch engine is one engine on one device, got {value}; use 1")
