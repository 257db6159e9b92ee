"""Creation of inference engines from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trinity.common.config import Config
from trinity.common.config.keys import value_of
from trinity.common.config.model import InferenceModelConfig
from trinity.common.models.call_timeout import call_timeout_s
from trinity.common.models.inference_model import InferenceModel
from trinity.engine.external.model import ExternalModel, external_settings
from trinity.engine.router.engine_pool import EnginePoolSettings
from trinity.engine.router.remote import RuntimeEngines
from trinity.engine.router.router import EngineRouter
from trinity.engine.router.slot import EngineSource, LocalEngines
from trinity.engine.settings import EngineSettings, engine_settings, section_key
from trinity.engine.vllm.settings import VLLMSettings, vllm_settings
from trinity.runtime.base import Resources, Runtime

SHARE_OF_ENGINES = 0.5  # of a single GPU; the trainer has the rest


def create_inference_model(config: Config, runtime: Runtime | None = None) -> InferenceModel:
    """Return the engine of the rollout model, not yet prepared.

    Args:
        config: configuration of the stage. A script that tries a workflow passes one that is not resolved, whose rules
            were not checked; so values that an engine would ignore are refused here as well.
        runtime: starts the processes of several engines, and of engines on other nodes; None: all in this process.

    Raises:
        NotAvailableError: an `engine_type`, or another value, that no engine serves (E1900).
        ConfigError: a value that the engine does not serve (E1612, E3220, E3223, E3224).
    """
    return _model(config, runtime, auxiliary=None)


def create_auxiliary_models(config: Config, runtime: Runtime | None = None) -> list[InferenceModel]:
    """Return the engines of the auxiliary models, not yet prepared.

    Raises:
        NotAvailableError: see `create_inference_model`.
    """
    return [_model(config, runtime, auxiliary=index) for index in range(len(config.explorer.auxiliary_models))]


def _model(config: Config, runtime: Runtime | None, *, auxiliary: int | None) -> InferenceModel:
    """Return a model's external server, engine, or router over its engines.

    A local run with one engine has it in this process; several engines, and those of a cluster, have their own
    processes.
    """
    is_rollout = auxiliary is None
    key = section_key(auxiliary)
    section = value_of(config, key)
    if section.engine_type == "external":
        return ExternalModel(external_settings(config, section, key=str(key)))
    make, settings = _engine(config, auxiliary)
    if section.engine_num == 1 and (runtime is None or runtime.is_local):
        return make(settings)
    source: EngineSource = LocalEngines(lambda: make(settings))
    timeout_s = call_timeout_s(config)
    if runtime is not None:
        source = RuntimeEngines(
            runtime,
            make,
            settings,
            name=f"{config.explorer.name}_{'rollout_model' if is_rollout else f'auxiliary_model_{auxiliary}'}",
            resources=Resources(num_gpus=gpus_of_engine(config, section), own_process=True),
            count=section.engine_num,
            timeout_s=timeout_s,
            sync_timeout_s=config.synchronizer.sync_timeout,
        )
    return EngineRouter(
        source,
        pool_settings(config, section),
        timeout_s=timeout_s,
        is_deterministic=config.deterministic,
        objects=None if runtime is None else runtime.objects,
    )


def _engine(config: Config, auxiliary: int | None) -> tuple[Callable[[Any], InferenceModel], Any]:
    """Return the function that creates a model's engine, and its settings."""
    if value_of(config, section_key(auxiliary)).engine_type in ("vllm", "vllm_async"):
        return vllm_engine, vllm_settings(config, auxiliary)
    return torch_engine, engine_settings(config, auxiliary)


def vllm_engine(settings: VLLMSettings) -> InferenceModel:
    """Return a vLLM engine; its modules are imported in its process only."""
    from trinity.engine.vllm.engine import VLLMEngine

    return VLLMEngine(settings)


def torch_engine(settings: EngineSettings) -> InferenceModel:
    """Return a torch engine; its modules are imported in its process only."""
    from trinity.engine.torch.engine import TorchEngine

    return TorchEngine(settings)


def gpus_of_engine(config: Config, model: InferenceModelConfig) -> float:
    """Return the GPUs of one engine: a fraction if the run has only one GPU."""
    total = config.cluster.total_gpu_num or 0
    if total == 1:
        engines = [config.explorer.rollout_model, *config.explorer.auxiliary_models]
        return SHARE_OF_ENGINES / sum(each.engine_num for each in engines)
    return float(model.tensor_parallel_size * model.pipeline_parallel_size * model.data_parallel_size) if total else 0.0


def pool_settings(config: Config, model: InferenceModelConfig) -> EnginePoolSettings:
    """Return the number of a model's engines and their health settings."""
    explorer = config.explorer
    return EnginePoolSettings(
        count=model.engine_num,
        probe_first_wait_s=explorer.engine_probe_first_wait,
        probe_interval_s=explorer.engine_probe_interval,
        probe_timeout_s=explorer.engine_probe_timeout,
        recovery_timeout_s=explorer.engine_recovery_timeout,
        sync_timeout_s=config.synchronizer.sync_timeout,
    )
