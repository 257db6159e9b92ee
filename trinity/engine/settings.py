"""Settings of the torch engine, taken from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trinity.common.config import Config
from trinity.common.config.engine_args import TORCH_ENGINE_ARGS
from trinity.common.config.model import InferenceModelConfig, ModelConfig
from trinity.common.errors import ConfigError, NotAvailableError
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.model import call_timeout_s

MAX_DEFAULT_SLOTS = 256


@dataclass(frozen=True)
class EngineSettings:
    """Settings of one torch engine.

    Attributes:
        model: model path, chat template, lengths; `max_model_len` is set.
        params: sampling defaults.
        max_num_seqs: most sequences at once.
        seed: seed of the sampling noise.
        is_deterministic: use rounds and fixed shapes.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu or cuda.
        memory_frac: share of a CUDA device's memory for weights and cache.
        num_engines: engines that share the device's memory.
        timeout_s: longest wait for one call in seconds.
        sync_timeout_s: longest wait for a weight update in seconds.
        is_fast_allowed: use the fast path if it supports the model.
        is_auxiliary: engine of an auxiliary model, which takes part in no rounds and keeps its weights as loaded.
        updates_in_flight: samples in progress continue across a weight update.
        model_overrides: entries of the model's configuration that the trainer overrides, too.
        rotary_len: length by which the trainer chooses rotary frequencies; None: the engine's `max_model_len`.
        external_lib: modules to import before the model is loaded.
    """

    model: ModelConfig
    params: GenerateParams = field(default_factory=GenerateParams)
    max_num_seqs: int = 64
    seed: int = 42
    is_deterministic: bool = False
    dtype: str = "auto"
    device: str = "auto"
    memory_frac: float = 0.9
    num_engines: int = 1
    timeout_s: float = 1800.0
    sync_timeout_s: float = 3600.0
    is_fast_allowed: bool = True
    is_auxiliary: bool = False
    updates_in_flight: bool = False
    model_overrides: Mapping[str, Any] = field(default_factory=dict)
    rotary_len: int | None = None
    external_lib: str | tuple[str, ...] | None = None


def engine_settings(
    config: Config, auxiliary: InferenceModelConfig | None = None, *, is_any_argument_known: bool = False
) -> EngineSettings:
    """Return the engine settings of the rollout or an auxiliary model.

    Args:
        config: the run's configuration.
        auxiliary: section of an auxiliary model; None: the rollout model.
        is_any_argument_known: do not check the names in `extra_engine_args`; the engine will.

    Raises:
        ConfigError: `max_model_len` is unknown, or an unknown key in `extra_engine_args` (E1612).
    """
    rollout = auxiliary or config.explorer.rollout_model
    model = inherited(config.model, rollout)
    unknown = sorted(rollout.extra_engine_args.keys() - set(TORCH_ENGINE_ARGS))
    if unknown and not is_any_argument_known:
        raise ConfigError(
            f"explorer.rollout_model.extra_engine_args: the torch engine knows {', '.join(TORCH_ENGINE_ARGS)}, "
            f"got {unknown[0]!r}",
            code="E1612",
        )
    if model.max_model_len is None:
        raise ConfigError("model.max_model_len must be set or derived before an engine starts, got null", code="E1612")
    check_available(model)
    if rollout.lora_configs:
        raise NotAvailableError("an engine's own lora_configs are not available; the adapter is that of section model")
    trained = config.trainer.trainer_config.actor_rollout_ref.model
    slots = min(MAX_DEFAULT_SLOTS, config.explorer.runner_per_model * (config.algorithm.repeat_times or 1))
    return EngineSettings(
        model=model,
        params=GenerateParams.of(model, ignore_eos=rollout.ignore_eos),
        max_num_seqs=int(rollout.extra_engine_args.get("max_num_seqs", slots)),
        seed=rollout.seed,
        is_deterministic=config.deterministic,
        dtype=rollout.dtype,
        device=str(rollout.extra_engine_args.get("device", "auto")),
        memory_frac=rollout.gpu_memory_utilization,
        num_engines=rollout.engine_num,
        timeout_s=call_timeout_s(config),
        sync_timeout_s=config.synchronizer.sync_timeout,
        is_auxiliary=auxiliary is not None,
        updates_in_flight=config.synchronizer.update_in_flight,
        model_overrides=trained.override_config if auxiliary is None else {},
        rotary_len=config.model.max_model_len if auxiliary is None else None,
        external_lib=trained.external_lib,
    )


def check_available(model: ModelConfig) -> None:
    """Refuse settings that the torch engine would otherwise ignore.

    Raises:
        NotAvailableError: the message names the key and the value to use.
    """
    plain = {"repetition_penalty": 1.0, "rope_scaling": None, "rope_theta": None}
    for name, value in plain.items():
        got = model.__dict__[name]
        if got != value and got != ():
            raise NotAvailableError(f"model.{name} is not available with the torch engine, got {got}; use {value}")
    if model.logprobs > 1:
        raise NotAvailableError(f"model.logprobs above 1 is not available with the torch engine, got {model.logprobs}")


def inherited(model: ModelConfig, rollout: InferenceModelConfig) -> ModelConfig:
    """Return `model` with the non-null values of `rollout`."""
    names = ModelConfig.model_fields.keys() & InferenceModelConfig.model_fields.keys()
    own = {name: value for name in names if (value := rollout.__dict__[name]) is not None}
    if rollout.chat_template is not None:
        own |= {"custom_chat_template": rollout.chat_template, "chat_template_path": None}
    return model.model_copy(update=own)
