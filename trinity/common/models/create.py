"""From a configuration to an inference engine."""

from __future__ import annotations

from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig
from trinity.common.errors import NotAvailableError
from trinity.common.models.external_model import ExternalModel, external_settings
from trinity.common.models.model import InferenceModel, call_timeout_s
from trinity.common.models.routing.fleet import FleetSettings
from trinity.common.models.routing.router import EngineRouter
from trinity.common.models.routing.slot import LocalEngines
from trinity.common.models.torch_engine.engine import TorchEngine
from trinity.common.models.torch_engine.settings import engine_settings


def create_inference_model(config: Config) -> InferenceModel:
    """Return the engine of the rollout model, not yet prepared.

    Raises:
        NotAvailableError: another `engine_type` than auto, torch and external, or an engine on several devices.
    """
    section, key = config.explorer.rollout_model, "explorer.rollout_model"
    if section.engine_type == "external":
        return ExternalModel(external_settings(config, section, key=key))
    _check(section, key=key)
    return _engines(config)


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
        engines.append(_engines(config, model))
    return engines


def _engines(config: Config, auxiliary: InferenceModelConfig | None = None) -> InferenceModel:
    """Return the engine of a model, or a router over its `engine_num` engines."""
    model = auxiliary or config.explorer.rollout_model
    settings = engine_settings(config, auxiliary)
    if model.engine_num == 1:
        return TorchEngine(settings)
    return EngineRouter(
        LocalEngines(lambda: TorchEngine(settings)),
        fleet_settings(config, model),
        timeout_s=call_timeout_s(config),
        is_deterministic=config.deterministic,
    )


def fleet_settings(config: Config, model: InferenceModelConfig) -> FleetSettings:
    """Return how many engines `model` has, and how their health is kept."""
    explorer = config.explorer
    return FleetSettings(
        count=model.engine_num,
        probe_first_wait_s=explorer.engine_probe_first_wait,
        probe_interval_s=explorer.engine_probe_interval,
        probe_timeout_s=explorer.engine_probe_timeout,
        recovery_timeout_s=explorer.engine_recovery_timeout,
        sync_timeout_s=config.synchronizer.sync_timeout,
    )


def _check(rollout: InferenceModelConfig, *, key: str) -> None:
    if rollout.engine_type not in ("auto", "torch"):
        raise NotAvailableError(
            f"{key}.engine_type: only auto, torch and external are available in this version, got "
            f"{rollout.engine_type!r}; use --set {key}.engine_type=torch"
        )
    if rollout.tensor_parallel_size != 1:
        raise NotAvailableError(
            f"{key}.tensor_parallel_size: the torch engine is on one device, got {rollout.tensor_parallel_size}; use 1"
        )
