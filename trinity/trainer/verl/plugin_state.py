"""What loss and advantage functions of plugins remember: their part of a checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trinity.common.errors import WorkflowError
from trinity.trainer.advantage import BatchAdvantage
from trinity.trainer.verl.loss import LossFn
from trinity.utils.stateful import Stateful


def function_states(loss_fn: LossFn, advantage: BatchAdvantage | None) -> dict[str, dict[str, Any]]:
    """Return the state of each function that has one, by its key under `algorithm`.

    Raises:
        WorkflowError: a state holds something else than tensors, numbers, texts, lists and dicts (E5141).
    """
    found = {}
    for role, function in _functions(loss_fn, advantage).items():
        state = function.state_dict()
        wrong = _unknown(state)
        if wrong is not None or not isinstance(state, dict):
            raise WorkflowError(
                f"state_dict of {type(function).__name__} (algorithm.{role}) must return a dict of tensors, numbers, "
                f"texts, lists and dicts, got {wrong or type(state).__name__} in it",
                code="E5141",
            )
        if state:
            found[role] = state
    return found


def restore_functions(
    states: Mapping[str, Mapping[str, Any]], loss_fn: LossFn, advantage: BatchAdvantage | None
) -> None:
    """Give each function what `function_states` returned of it."""
    for role, function in _functions(loss_fn, advantage).items():
        if role in states:
            function.load_state_dict(states[role])


def _functions(loss_fn: LossFn, advantage: BatchAdvantage | None) -> dict[str, Stateful]:
    found: dict[str, Stateful] = {
        "policy_loss_fn": loss_fn.policy_loss,
        "kl_loss_fn": loss_fn.kl,
        "entropy_loss_fn": loss_fn.entropy,
    }
    if advantage is not None:
        found |= {"advantage_fn": advantage.function, "kl_penalty_fn": advantage.kl}
    return found


def _unknown(value: Any) -> str | None:
    """Return the type of the first value that a checkpoint cannot hold."""
    if value is None or isinstance(value, Tensor) or type(value) in (bool, int, float, str):
        return None
    if type(value) in (list, tuple):
        return next((wrong for each in value if (wrong := _unknown(each))), None)
    if type(value) in (dict, OrderedDict):
        wrong_key = next((type(key).__name__ for key in value if type(key) not in (str, int)), None)
        return wrong_key or _unknown(list(value.values()))
    return type(value).__name__
