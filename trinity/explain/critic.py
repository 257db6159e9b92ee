"""The value loss as the command line shows it; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity.common.config.following import fallback_of
from trinity.common.config.keys import CRITIC
from trinity.common.config.resolved import filled, loss_divisor
from trinity.common.config.verl_critic import CriticConfig
from trinity.explain.aggregation import aggregation
from trinity.utils import formula
from trinity.utils.formula import number

if TYPE_CHECKING:
    from trinity.common.config import Config

SOURCE = "arXiv:2005.12729"
_OF_TOKEN = "max((v - G)^2, (clip(v, value - {cliprange_value}, value + {cliprange_value}) - G)^2) / 2"
_LETTERS = "v: prediction, value: prediction before the update, G = A before whitening + value"


def in_symbols() -> list[str]:
    """Return the value loss with the names of its settings."""
    return [
        "critic: value model of model.critic_model_path, a loss of its own",
        f"V = agg[{formula.in_symbols(_OF_TOKEN)[0]}]",
        _LETTERS,
        f"defaults: cliprange_value {number(CriticConfig().cliprange_value)}, optim.lr "
        f"{number(fallback_of(CRITIC.optim.lr))}, the rest as the actor, under {CRITIC}",
    ]


def in_numbers(config: Config) -> list[str]:
    """Return the value loss of a resolved configuration."""
    critic = config.trainer.trainer_config.critic
    scope = config.algorithm.loss_agg_scope
    words = aggregation(str(critic.loss_agg_mode), number(loss_divisor(config)), is_verl=True, scope=scope)
    (of_token,) = formula.in_numbers(_OF_TOKEN, {"cliprange_value": critic.cliprange_value})
    return [f"value loss of the critic = {words} {of_token}", _LETTERS]


def in_batch(config: Config) -> str:
    """Return how the critic is stepped in a resolved configuration."""
    rows, epochs = config.buffer.train_batch_size, filled(config, CRITIC.ppo_epochs)
    lr = number(filled(config, CRITIC.optim.lr))
    steps = f"{epochs} optimizer step{'s' if epochs != 1 else ''}"
    warmup = config.trainer.critic_warmup
    first = f"; the first {warmup} training steps train it alone" if warmup else ""
    return f"critic: {rows} experiences, {steps} at lr {lr}{first}"
