"""Facts of a configuration: the one function for each, for all readers."""

from __future__ import annotations

import math
from typing import TypeVar

from trinity.common.config.config import Config
from trinity.common.config.keys import CRITIC, Key, present, value_of
from trinity.common.config.verl_base import FsdpConfig

T = TypeVar("T")


def filled(value: T | None, key: str) -> T:
    """Return a value that `resolve` fills in if it is absent from the file."""
    assert value is not None, f"{key} is open: the configuration was not resolved"
    return value


def num_workers(config: Config) -> int:
    """Return the training processes: as written, else one per trainer GPU."""
    return int(config.trainer.num_workers or config.cluster.trainer_gpu_num or 1)


def repeat_times(config: Config) -> int:
    """Return the rollouts of each task that is explored for training."""
    taskset = config.buffer.explorer_input.taskset
    return (taskset and taskset.repeat_times) or config.algorithm.repeat_times or 1


def num_explored(config: Config) -> int:
    """Return the rollouts of an explorer step."""
    return config.buffer.batch_size * repeat_times(config)


def reuses_rollouts(config: Config) -> bool:
    """Return whether a replay buffer adds rollouts of earlier steps."""
    buffer = config.buffer.trainer_input.experience_buffer
    return buffer is not None and buffer.replay_buffer.enable and buffer.replay_buffer.reuse_cooldown_time is not None


def sync_intervals(config: Config) -> tuple[int, int]:
    """Return the explorer's and the trainer's steps between two fixed syncs."""
    sync = config.synchronizer
    return (
        filled(sync.explorer_sync_interval, "synchronizer.explorer_sync_interval"),
        filled(sync.trainer_sync_interval, "synchronizer.trainer_sync_interval"),
    )


def rhythm(config: Config, taken: int) -> tuple[int, int]:
    """Return matching explorer and trainer steps: the intervals, if fixed.

    Otherwise they follow from the rollouts made and `taken`, those of a training step.
    """
    if config.synchronizer.sync_style == "fixed":
        return sync_intervals(config)
    made, taken = num_explored(config), max(1, taken)
    shared = math.gcd(made, taken)
    return taken // shared, made // shared


def temperature(config: Config, schema: str) -> float:
    """Return the engine's temperature, which divides the logits; 1 if greedy.

    It is 1 as well where an algorithm type of another `schema` than `experience` trains on a dataset.
    """
    if schema != "experience":
        return 1.0
    taskset = config.buffer.explorer_input.taskset
    value = None if taskset is None else taskset.rollout_args.temperature
    return float(config.model.temperature if value is None else value) or 1.0


def critic_sharding(config: Config) -> Key[FsdpConfig]:
    """Return which section has the critic's sharding and number types."""
    is_older = config.trainer.trainer_config.critic.fsdp is None
    return CRITIC.model.fsdp_config if is_older else present(CRITIC.fsdp)


def critic_fsdp(config: Config) -> FsdpConfig:
    """Return the critic's sharding, at its newer or older place."""
    return value_of(config, critic_sharding(config))


def has_critic(config: Config) -> bool:
    """Return whether a value model is trained, as `resolve` decides.

    Of a plugin's advantage that declares nothing, only the run knows: see `trinity.trainer.verl.critic.reads_values`.
    """
    return config.trainer.trainer_config.critic.enable is True


def loss_divisor(config: Config) -> float:
    """Return what `seq-mean-token-sum-norm` divides by, in tokens."""
    return float(filled(config.model.max_response_tokens, "model.max_response_tokens"))


def database_file(config: Config) -> str | None:
    """Return the SQLite file that the rollouts go to; None for another place."""
    buffer = config.buffer.trainer_input.experience_buffer
    url = None if buffer is None or buffer.storage_type == "file" else buffer.path
    if not url or not url.startswith("sqlite") or "://" not in url:
        return None
    return url.partition("://")[2][1:].partition("?")[0] or None
