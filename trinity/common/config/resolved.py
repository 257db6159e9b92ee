"""Access to a resolved configuration: values filled by `resolve` are set."""

from __future__ import annotations

from typing import TypeVar

from trinity.common.config.config import Config
from trinity.common.config.mixture import num_expert_rows
from trinity.common.constants import SyncStyle

T = TypeVar("T")


def filled(value: T | None, key: str) -> T:
    """Return a value that `resolve` fills in if it is absent from the file."""
    assert value is not None, f"{key} is open: the configuration was not resolved"
    return value


def num_rollouts(config: Config) -> int:
    """Return the rollouts of a training step, without the expert's rows."""
    size, algorithm = config.buffer.train_batch_size, config.algorithm
    if algorithm.sample_strategy != "mix":
        return size
    arguments = filled(algorithm.sample_strategy_args, "algorithm.sample_strategy_args")
    return size - num_expert_rows(arguments["expert_data_ratio"], size)


def loss_divisor(config: Config) -> float:
    """Return what `seq-mean-token-sum-norm` divides by, in tokens."""
    actor = config.trainer.trainer_config.actor_rollout_ref.actor
    return float(actor.loss_scale_factor or filled(config.model.max_response_tokens, "model.max_response_tokens"))


def planned_steps(config: Config, explore_steps: int | None = None) -> int | None:
    """Return the number of training steps; None if only the data tell.

    Args:
        config: resolved configuration.
        explore_steps: explore steps that the explorer plans, where one runs beside the trainer.
    """
    if config.trainer.total_steps is not None:
        return int(config.trainer.total_steps)
    buffer = config.buffer
    if config.mode != "both":
        return None if buffer.total_steps is None else int(buffer.total_steps)
    steps = buffer.total_steps if buffer.total_steps is not None else explore_steps
    if steps is None:
        return None
    if _uses_again(config):
        # Rollouts of earlier steps fill the batches: the schedule says how many steps there are, not the rollouts.
        sync = config.synchronizer
        if SyncStyle(sync.sync_style) != SyncStyle.FIXED:
            return None
        ours = filled(sync.trainer_sync_interval, "synchronizer.trainer_sync_interval")
        theirs = filled(sync.explorer_sync_interval, "synchronizer.explorer_sync_interval")
        return max(1, -(-steps * ours // theirs))
    produced = steps * buffer.batch_size * filled(config.algorithm.repeat_times, "algorithm.repeat_times")
    return max(1, -(-produced // num_rollouts(config)))


def _uses_again(config: Config) -> bool:
    buffer = config.buffer.trainer_input.experience_buffer
    return buffer is not None and buffer.replay_buffer.enable and buffer.replay_buffer.reuse_cooldown_time is not None


def steps_by_actor(config: Config) -> dict[str, int | None]:
    """Return the planned steps of each actor, None where only data tell.

    The trainer is first, where there is one.
    """
    explored = {} if config.mode == "train" else {config.explorer.name: config.buffer.total_steps}
    trained = {config.trainer.name: planned_steps(config)} if config.mode in ("train", "both") else {}
    return trained | explored


def database_file(config: Config) -> str | None:
    """Return the SQLite file that the rollouts go to; None for another place."""
    buffer = config.buffer.trainer_input.experience_buffer
    url = None if buffer is None or buffer.storage_type == "file" else buffer.path
    if not url or not url.startswith("sqlite") or "://" not in url:
        return None
    return url.partition("://")[2][1:].partition("?")[0] or None
