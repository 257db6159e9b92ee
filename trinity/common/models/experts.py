"""Refusal of a mixture of experts that asks for a load-balancing loss."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trinity.common.config.rules.trainer import LOSS_OF_EXPERTS

_SWITCH = "output_router_logits"
_COEFFICIENT = re.compile(r"aux_loss|z_loss|moe_loss")


def experts_problem(config: Mapping[str, Any], overrides: Mapping[str, Any], *, key: str) -> str | None:
    """Return why a model cannot be trained as `config` asks, or None.

    Transformers adds the loss if the configuration returns the router's logits and the coefficient is not 0. Only that
    counts: a coefficient alone does not ask for the loss.

    Args:
        config: contents of the model's `config.json`.
        overrides: entries that `override_config` sets.
        key: configuration key of `override_config`, for the message.
    """
    made = {name: value for name, value in config.items() if not isinstance(value, Mapping)} | dict(overrides)
    coefficients = [value for name, value in made.items() if _COEFFICIENT.search(str(name))]
    if made.get(_SWITCH) and (not coefficients or any(coefficients)):
        return (
            f"config.json says {_SWITCH}: true, which adds a loss to balance the experts' load, and {LOSS_OF_EXPERTS}; "
            f"write {key}.{_SWITCH}: false to train without it"
        )
    for name, value in config.items():
        inner = overrides.get(name)
        if isinstance(value, Mapping):
            own = inner if isinstance(inner, Mapping) else {}
            problem = experts_problem(value, own, key=f"{key}.{name}")
            if problem is not None:
                return problem
    return None
