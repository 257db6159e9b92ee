"""Access to a resolved configuration: values filled by `resolve` are set."""

from __future__ import annotations

from typing import TypeVar

from trinity.common.config.config import Config
from trinity.common.config.mixture import num_expert_rows

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
