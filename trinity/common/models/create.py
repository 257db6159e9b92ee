"""From a configuration to an inference engine."""

from __future__ import annotations

from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig
from trinity.common.errors import NotAvailableError
from trinity.common.models.model import InferenceModel, call_timeout_s
from trinity.common.models.remote_engine import EnginePlace, RemoteEngines
from trinity.common.models.routing.fleet import FleetSettings
from trinity.common.models.routing.router import EngineRouter
from trinity.common.models.routing.slot import EngineSource, LocalEngines
from trinity.common.models.torch_engine.engine import TorchEngine
from trinity.common.models.torch_engine.settings import engine_settings
from trinity.runtime.base import Runtime

SHARE_OF_ENGINES = 0.5  # of a single GPU; the trainer has the rest


def create_inference_model(config: Config, runtime: Runtime | None = None) -> InferenceModel:
    """Return the engine of the rollout model, not yet prepared.

    Args:
        config: resolved configuration of the stage.
        runtime: places engines that have processes of their own; None: every engine is in this process.

    Raises:
        NotAvailableError: `engine_type` is neither auto nor torch, or an engine on several devices is asked for.
    """
    _check(config.explorer.rollout_model, key="explorer.rollout_model")
    return _engines(config, None, runtime)


def create_auxiliary_models(config: Config, runtime: Runtime | None = None) -> list[InferenceModel]:
    """Return the engines of the auxiliary models, not yet prepared.

    Raises:
        NotAvailableError: as for `create_inference_model`.
    """
    engines: list[InferenceModel] = []
    for index, model in enumerate(config.explorer.auxiliary_models):
        _check(model, key=f"explorer.auxiliary_models[{index}]")
        engines.append(_engines(config, index, runtime))
    return engines


def create_engine(config: Config, auxiliary: int | None = None) -> InferenceModel:
    """Return one engine in this process, not yet prepared.

    Args:
        config: resolved configuration of the stage.
        auxiliary: index of the auxiliary model; None: the rollout model.
    """
    model = None if auxiliary is None else config.explorer.auxiliary_models[auxiliary]
    return TorchEngine(engine_settings(config, model))


def _engines(config: Config, auxiliary: int | None, runtime: Runtime | None) -> InferenceModel:
    """Return the engine of a model, or a router over its `engine_num` engines.

    One engine of a local run is in this process; several, and those on other machines, have processes of their own.
    """
    explorer = config.explorer
    model = explorer.rollout_model if auxiliary is None else explorer.auxiliary_models[auxiliary]
    if model.engine_num == 1 and (runtime is None or runtime.is_local):
        return create_engine(config, auxiliary)
    source: EngineSource = LocalEngines(lambda: create_engine(config, auxiliary))
    if runtime is not None:
        num_gpus = gpus_of_engine(config, model)
        source = RemoteEngines(EnginePlace(runtime, config, create_engine, auxiliary, num_gpus=num_gpus))
    return EngineRouter(
        source,
        fleet_settings(config, model),
        timeout_s=call_timeout_s(config),
        is_deterministic=config.deterministic,
    )


def gpus_of_engine(config: Config, model: InferenceModelConfig) -> float:
    """Return the GPUs that a scheduler reserves for one engine; a part, where the run has one GPU for all."""
    total = config.cluster.total_gpu_num or 0
    if total == 1:
        engines = [config.explorer.rollout_model, *config.explorer.auxiliary_models]
        return SHARE_OF_ENGINES / sum(each.engine_num for each in engines)
    return float(model.tensor_parallel_size * model.pipeline_parallel_size * model.data_parallel_size) if total else 0.0


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
            f"{key}.engine_type: only auto and torch are available in this version, got {rollout.engine_type!r}; "
            f"use --set {key}.engine_type=torch"
        )
    if rollout.tensor_parallel_size != 1:
        raise NotAvailableError(
            f"{key}.tensor_parallel_size: the torch engine is on one device, got {rollout.tensor_parallel_size}; use 1"
        )
