"""From a configuration to an inference engine."""

from __future__ import annotations

from collections.abc import Callable

from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig
from trinity.common.errors import ConfigError, NotAvailableError
from trinity.common.models.external_model import ExternalModel, external_settings
from trinity.common.models.model import InferenceModel, call_timeout_s
from trinity.common.models.routing.fleet import FleetSettings
from trinity.common.models.routing.router import EngineRouter
from trinity.common.models.routing.slot import LocalEngines
from trinity.common.models.torch_engine.engine import TorchEngine
from trinity.common.models.torch_engine.settings import engine_settings
from trinity.common.models.vllm_engine import VLLMEngine
from trinity.common.models.vllm_settings import vllm_settings


def create_inference_model(config: Config) -> InferenceModel:
    """Return the engine of the rollout model, not yet prepared.

    Raises:
        NotAvailableError: an `engine_type` that is not served (E1900).
        ConfigError: a value that the engine does not serve (E1612, E3220, E3223, E3224).
    """
    section, key = config.explorer.rollout_model, "explorer.rollout_model"
    if section.engine_type == "external":
        return ExternalModel(external_settings(config, section, key=key))
    return _engines(config, key=key)


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
        engines.append(_engines(config, model, key=key))
    return engines


def _engines(config: Config, auxiliary: InferenceModelConfig | None = None, *, key: str) -> InferenceModel:
    """Return the engine of a model, or a router over its `engine_num` engines."""
    model = auxiliary or config.explorer.rollout_model
    make = _maker(config, auxiliary, key=key)
    if model.engine_num == 1:
        return make()
    return EngineRouter(
        LocalEngines(make),
        fleet_settings(config, model),
        timeout_s=call_timeout_s(config),
        is_deterministic=config.deterministic,
    )


def _maker(config: Config, auxiliary: InferenceModelConfig | None, *, key: str) -> Callable[[], InferenceModel]:
    """Return what makes an engine of a model."""
    model = auxiliary or config.explorer.rollout_model
    if model.engine_type in ("vllm", "vllm_async"):
        served = vllm_settings(config, auxiliary, key=key)
        return lambda: VLLMEngine(served)
    _check(model, key=key)
    settings = engine_settings(config, auxiliary)
    return lambda: TorchEngine(settings)


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


def _check(model: InferenceModelConfig, *, key: str) -> None:
    if model.engine_type not in ("auto", "torch"):
        raise NotAvailableError(
            f"{key}.engine_type: auto, torch, vllm and external are available, got {model.engine_type!r}; "
            f"use --set {key}.engine_type=torch"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = model.__dict__[name]
        if size != 1:
            raise ConfigError(
                f"{key}.{name}: the torch engine is on one device, got {size}; use 1 or engine_type: vllm", code="E3223"
            )
