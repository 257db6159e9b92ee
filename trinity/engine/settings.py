"""Settings of the torch engine, taken from the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from trinity.common.config import Config
from trinity.common.config.engine_args import IMAGE_CACHE_ARGS
from trinity.common.config.engine_refusals import torch_refusals, unspread_replicas
from trinity.common.config.keys import KEYS, ROLLOUT_MODEL, Key, value_of
from trinity.common.config.model import InferenceModelConfig, ModelConfig
from trinity.common.config.refusals import Refusal, unserved
from trinity.common.errors import ConfigError
from trinity.common.models.call_timeout import call_timeout_s
from trinity.common.models.generate_params import GenerateParams

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
        tool_call_parser: form of the model's tool calls; None: responses are text.
        reasoning_parser: form of the model's reasoning; None: it is part of the text.
        has_prefix_cache: keep the keys and values of prompts and responses for prompts that begin with them.
        prefix_cache_bytes: most memory of them in bytes; None: derived by the engine.
        is_multimodal: read images, if the model does.
        image_cache_bytes: most memory of preprocessed images that are kept, in bytes.
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
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    has_prefix_cache: bool = True
    prefix_cache_bytes: int | None = None
    is_multimodal: bool = False
    image_cache_bytes: int = 256 * 2**20


def engine_settings(config: Config, auxiliary: int | None = None) -> EngineSettings:
    """Return the engine settings of the rollout or an auxiliary model.

    Args:
        config: the run's configuration.
        auxiliary: index of an auxiliary model; None: the rollout model.

    Raises:
        ConfigError: `max_model_len` is unknown (E1616), or a value is one that the torch engine does not serve (E1612,
            E3223).
        NotAvailableError: a value that no engine serves (E1900).
    """
    key = section_key(auxiliary)
    check(chain(torch_refusals(config, key), unspread_replicas(config, key)))
    return shared_settings(config, auxiliary)


def shared_settings(config: Config, auxiliary: int | None = None) -> EngineSettings:
    """Return the settings that every engine which samples here has.

    Raises:
        ConfigError: `max_model_len` is unknown (E1616).
        NotAvailableError: a value that no engine serves (E1900).
    """
    key = section_key(auxiliary)
    check(chain(unserved(config, key), unserved(config, KEYS.model)))
    rollout = value_of(config, key)
    model = inherited(config.model, rollout)
    if model.max_model_len is None:
        raise ConfigError("model.max_model_len must be set or derived before an engine starts, got null", code="E1616")
    trained = config.trainer.trainer_config.actor_rollout_ref.model
    slots = min(MAX_DEFAULT_SLOTS, config.explorer.runner_per_model * (config.algorithm.repeat_times or 1))
    return EngineSettings(
        model=model,
        params=GenerateParams.of(model, ignore_eos=rollout.ignore_eos),
        max_num_seqs=int(rollout.extra_engine_args.get("max_num_seqs", slots)),
        seed=config.seed if rollout.seed is None else rollout.seed,
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
        tool_call_parser=rollout.tool_call_parser if rollout.enable_auto_tool_choice else None,
        reasoning_parser=rollout.reasoning_parser,
        has_prefix_cache=rollout.enable_prefix_caching,
        prefix_cache_bytes=rollout.prefix_cache_bytes,
        is_multimodal=rollout.enable_multimodal,
        image_cache_bytes=_image_cache_bytes(rollout.extra_engine_args),
    )


def _image_cache_bytes(arguments: Mapping[str, Any]) -> int:
    size, switch = IMAGE_CACHE_ARGS
    if arguments.get(switch):
        return 0
    return int(arguments[size] * 2**30) if size in arguments else EngineSettings.image_cache_bytes


def section_key(auxiliary: int | None) -> Key[InferenceModelConfig]:
    """Return the key of the rollout model's section, or an auxiliary one's."""
    return ROLLOUT_MODEL if auxiliary is None else KEYS.explorer.auxiliary_models[auxiliary]


def check(refusals: Iterable[Refusal]) -> None:
    """Raise the first refusal; a resolved configuration has none."""
    for refusal in refusals:
        raise refusal.error()


def inherited(model: ModelConfig, rollout: InferenceModelConfig) -> ModelConfig:
    """Return `model` with the non-null values of `rollout`."""
    names = ModelConfig.model_fields.keys() & InferenceModelConfig.model_fields.keys()
    own = {name: value for name in names if (value := rollout.__dict__[name]) is not None}
    if rollout.chat_template is not None:
        own |= {"custom_chat_template": rollout.chat_template, "chat_template_path": None}
    return model.model_copy(update=own)
