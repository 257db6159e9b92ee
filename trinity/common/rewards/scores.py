"""The call of a reward function: what it is given and returns."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from trinity.common.rewards.reward_fn import RewardError
from trinity.utils.source import is_function, named_with_file

# What a reward function with `**kwargs` is given besides what it names.
ALWAYS = ("response", "prompt", "truth")


def scores_of(reward_fn: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, float]:
    """Return the named scores of a response.

    Args:
        reward_fn: an object or a plain function. It is given those of `offered` that it names; `response`, `prompt` and
            `truth` also by `**kwargs`. A number that it returns is the score `reward`.
        offered: all that can be given.

    Raises:
        RewardError: of the function; or it needs something else (E5116), or returns something else (E5117).
    """
    names, needed, is_open = _parameters(inspect.unwrap(_called(reward_fn)), is_function(reward_fn))
    lacking = sorted(needed - offered.keys())
    if lacking:
        raise RewardError(
            f"the reward function {named_with_file(reward_fn)} needs {', '.join(lacking)}; a reward function may name "
            f"{', '.join(offered)}",
            code="E5116",
        )
    taken = {name: value for name, value in offered.items() if name in names or (is_open and name in ALWAYS)}
    result = reward_fn(**taken)
    number = _number(result)
    scores = {"reward": number} if number is not None else result
    if not isinstance(scores, Mapping):
        raise _refused(reward_fn, f"got {type(result).__name__}")
    named = {str(name): _number(value) for name, value in scores.items()}
    for name, value in named.items():
        if value is None:
            raise _refused(reward_fn, f"got {scores[name]!r} ({type(scores[name]).__name__}) for {name!r}")
    return {name: value for name, value in named.items() if value is not None}


def _called(reward_fn: Callable[..., Any]) -> Any:
    """Return the function that a call runs."""
    if isinstance(reward_fn, functools.partial):
        return reward_fn
    return reward_fn if is_function(reward_fn) else type(reward_fn).__call__


@functools.cache
def _parameters(function: Any, is_plain: bool) -> tuple[frozenset[str], frozenset[str], bool]:
    """Return the parameters, those without default, and whether it takes any."""
    parameters = list(inspect.signature(function).parameters.values())[0 if is_plain else 1 :]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in variable]
    needed = frozenset(p.name for p in named if p.default is inspect.Parameter.empty)
    is_open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return frozenset(p.name for p in named), needed, is_open


def _number(value: Any) -> float | None:
    """Return a number, or a tensor or array of one; None for anything else."""
    if callable(getattr(value, "item", None)) and getattr(value, "size", None) is not None:
        value = value.item() if math.prod(getattr(value, "shape", ())) == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _refused(reward_fn: Callable[..., Any], got: str) -> RewardError:
    return RewardError(
        f"the reward function {named_with_file(reward_fn)} must return a number, or numbers by name such as "
        f"{{'accuracy': 1.0}}; {got}",
        code="E5117",
    )
