"""States of loss and advantage functions in a checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trinity.common.errors import CheckpointError, WorkflowError
from trinity.trainer.advantage import BatchAdvantage
from trinity.trainer.verl.loss import LossFn
from trinity.utils.log import get_logger
from trinity.utils.stateful import Stateful

logger = get_logger("trainer")


def function_states(loss_fn: LossFn, advantage: BatchAdvantage | None) -> dict[str, dict[str, Any]]:
    """Return class and state of each function with a state.

    The keys are those under `algorithm`; `type` is the name of the class.

    Raises:
        WorkflowError: a state holds anything but tensors, numbers, texts, lists and dicts (E5141).
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
            found[role] = {"type": type(function).__name__, "state": state}
    return found


def restore_functions(
    states: Mapping[str, Mapping[str, Any]], loss_fn: LossFn, advantage: BatchAdvantage | None
) -> None:
    """Restore the functions from `function_states`.

    States of functions that this run does not use are left out.

    Raises:
        CheckpointError: a function cannot continue from its state (E7023).
    """
    functions = _functions(loss_fn, advantage)
    for role, saved in states.items():
        function, name = functions.get(role), saved["type"]
        if type(function).__name__ != name:
            logger.warning(
                "the checkpoint holds a state of %s (algorithm.%s), which this run does not use; it is left out",
                name,
                role,
            )
            continue
        assert function is not None, "no class is named NoneType"
        try:
            function.load_state_dict(saved["state"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{name} (algorithm.{role}) cannot continue from its state in the checkpoint: {error!r}; use the "
                "plugin that wrote it, or set continue_from_checkpoint: false",
                code="E7023",
            ) from error


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
