"""Access to a resolved configuration: values filled by `resolve` are set."""

from __future__ import annotations

from typing import TypeVar

from trinity.common.config.config import Config

T = TypeVar("T")


def filled(value: T | None, key: str) -> T:
    """Return a value that `resolve` fills in if it is absent from the file."""
    assert value is not None, f"{key} is open: the configuration was not resolved"
    return value


def loss_divisor(config: Config) -> float:
    """Return what `seq-mean-token-sum-norm` divides by, in tokens."""
    actor = config.trainer.trainer_config.actor_rollout_ref.actor
    return float(actor.loss_scale_factor or filled(config.model.max_response_tokens, "model.max_response_tokens"))
