"""Facts of a configuration: the one function for each, for all readers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

from trinity.common.config.buffer import TasksetConfig
from trinity.common.config.config import Config
from trinity.common.config.keys import CRITIC, EXPERIENCES, KEYS, Key, present, value_of
from trinity.common.config.mixture import num_expert_rows
from trinity.common.config.verl_base import FsdpConfig

T = TypeVar("T")


def filled(config: Config, key: Key[T | None]) -> T:
    """Return a value that `resolve` fills in if it is absent from the file."""
    value: T | None = value_of(config, key)
    assert value is not None, f"{key} is open: the configuration was not resolved"
    return value


def schema_of(config: Config) -> str:
    """Return the kind of experiences that a run trains on.

    It is `experience`, or that of a dataset: `sft`, `cpt` or `dpo`.
    """
    return filled(config, EXPERIENCES.schema_type)


def num_workers(config: Config) -> int:
    """Return the training processes: as written, else one per trainer GPU."""
    return int(config.trainer.num_workers or config.cluster.trainer_gpu_num or 1)


def training_tasksets(config: Config) -> tuple[TasksetConfig, ...]:
    """Return the tasksets that are explored for training, in their order."""
    section = config.buffer.explorer_input
    return section.tasksets if section.taskset is None else (section.taskset,)


def input_log(config: Config) -> str:
    """Return the run's own database for what comes into its pipeline."""
    return f"sqlite:///{Path(filled(config, KEYS.buffer.cache_dir)) / 'explorer_output.db'}"


def repeat_times(config: Config) -> int:
    """Return the rollouts of each task that is explored for training.

    All tasksets have the same (E1893).
    """
    tasksets = training_tasksets(config)
    return (tasksets[0].repeat_times if tasksets else None) or config.algorithm.repeat_times or 1


def num_explored(config: Config) -> int:
    """Return the rollouts of an explore step."""
    return config.buffer.batch_size * repeat_times(config)


def publication_interval(config: Config) -> int:
    """Return the training steps between two versions.

    It is 1 where explorer and trainer are one run, in which the trainer publishes any version that it is asked for.
    """
    if config.mode == "both":
        return 1
    return config.synchronizer.trainer_sync_interval or config.synchronizer.sync_interval


def expert_ratio(config: Config, *, mixes_experts: bool) -> float:
    """Return the share of expert rows in a batch; 0 if unmixed or invalid."""
    ratio: Any = (config.algorithm.sample_strategy_args or {}).get("expert_data_ratio") if mixes_experts else None
    is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    return float(ratio) if is_number and 0 <= ratio < 1 else 0.0


def num_experts(config: Config, *, mixes_experts: bool) -> int:
    """Return the expert rows of a training batch."""
    try:
        return num_expert_rows(expert_ratio(config, mixes_experts=mixes_experts), config.buffer.train_batch_size)
    except ValueError:
        return 0


def num_trained(config: Config, *, mixes_experts: bool) -> int:
    """Return the rollouts of a training step, without the expert's rows.

    Args:
        config: its `buffer.train_batch_size` is filled in.
        mixes_experts: the sample strategy adds rows of an expert.
    """
    return config.buffer.train_batch_size - num_experts(config, mixes_experts=mixes_experts)


def reuses_rollouts(config: Config) -> bool:
    """Return whether a replay buffer adds rollouts of earlier steps."""
    buffer = config.buffer.trainer_input.experience_buffer
    return buffer is not None and buffer.replay_buffer.enable and buffer.replay_buffer.reuse_cooldown_time is not None


def sync_intervals(config: Config) -> tuple[int, int]:
    """Return the explorer's and the trainer's steps between two fixed syncs."""
    sync = KEYS.synchronizer
    return filled(config, sync.explorer_sync_interval), filled(config, sync.trainer_sync_interval)


def rhythm(config: Config, taken: int) -> tuple[int, int]:
    """Return matching explorer and training steps: the intervals, if fixed.

    Otherwise they follow from the rollouts made and `taken`, those of a training step.
    """
    if config.synchronizer.sync_style == "fixed":
        return sync_intervals(config)
    made, taken = num_explored(config), max(1, taken)
    shared = math.gcd(made, taken)
    return taken // shared, made // shared


def temperature(config: Config, schema: str) -> float:
    """Return the engine's temperature, which divides the logits; 1 if greedy.

    All tasksets have the same (E1893). It is 1 as well where an algorithm type of another `schema` than `experience`
    trains on a dataset.
    """
    if schema != "experience":
        return 1.0
    tasksets = training_tasksets(config)
    value = tasksets[0].rollout_args.temperature if tasksets else None
    return float(config.model.temperature if value is None else value) or 1.0


def critic_sharding(config: Config) -> Key[FsdpConfig]:
    """Return which section has the critic's sharding and data types."""
    is_older = config.trainer.trainer_config.critic.fsdp is None
    return CRITIC.model.fsdp_config if is_older else present(CRITIC.fsdp)


def critic_fsdp(config: Config) -> FsdpConfig:
    """Return the critic's sharding, at its newer or older place."""
    return value_of(config, critic_sharding(config))


def writes_products(fsdp: FsdpConfig) -> bool:
    """Return whether a section has `mixed_precision.param_dtype`."""
    return fsdp.mixed_precision is not None and "param_dtype" in fsdp.mixed_precision.model_fields_set


def critic_products(config: Config) -> FsdpConfig:
    """Return the section with the data type of the critic's products.

    It is the actor's where the critic's has none.
    """
    own = critic_fsdp(config)
    is_own = writes_products(own) or "dtype" in own.model_fields_set
    return own if is_own else config.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config


def has_critic(config: Config) -> bool:
    """Return whether a value model is trained, as `resolve` decides.

    Of a plugin's advantage that declares nothing, only the run knows: see `trinity.trainer.verl.critic.reads_values`.
    """
    return config.trainer.trainer_config.critic.enable is True


def monitors(config: Config) -> tuple[str, ...]:
    """Return the names of the monitors beside `metrics.jsonl`."""
    written = config.monitor.monitor_type
    return tuple(dict.fromkeys(name for name in ([written] if isinstance(written, str) else written) if name))


def loss_divisor(config: Config) -> float:
    """Return what `seq-mean-token-sum-norm` divides by, in tokens."""
    return float(filled(config, KEYS.model.max_response_tokens))


def database_file(config: Config) -> str | None:
    """Return the SQLite file that the rollouts go to; None for another place."""
    buffer = config.buffer.trainer_input.experience_buffer
    url = None if buffer is None or buffer.storage_type == "file" else buffer.place
    if not url or not url.startswith("sqlite") or "://" not in url:
        return None
    return url.partition("://")[2][1:].partition("?")[0] or None
