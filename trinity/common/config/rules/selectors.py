"""Rules of selectors: their names, arguments, columns and feedback."""

from __future__ import annotations

from trinity.common.config.buffer import DataSelectorConfig
from trinity.common.config.following import fill_defaults
from trinity.common.config.keys import KEYS, Key, part_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.rules.registered import Chosen, check_arguments, check_name

OPERATORS = KEYS.data_processor.experience_pipeline.operators
TELLS_REWARDS = "pass_rate_calculator"


def check_selector(resolution: Resolution, key: Key[DataSelectorConfig], *, is_trained: bool = False) -> None:
    """Give a selector its seed; check that it exists, and what it needs.

    Args:
        resolution: the configuration.
        key: of its section.
        is_trained: it chooses among tasks that are explored for training, which get rewards.
    """
    if _check_choice(resolution, key):
        _check_feedback(resolution, key, is_trained=is_trained)


def check_idle_selector(resolution: Resolution, key: Key[DataSelectorConfig]) -> None:
    """Check the selector of an evaluation taskset, and warn of it (W1902).

    All of its tasks are attempted, whatever their order.
    """
    _check_choice(resolution, key)
    names = [name for name in DataSelectorConfig.model_fields if resolution.is_own(part_of(key, name))]
    for name in names:
        idle = part_of(key, name)
        why = "an evaluation runs every task of its taskset, whatever their order"
        resolution.problem("W1902", idle, f"`{idle}` has no effect: {why}", suggestion="remove it")


def _check_choice(resolution: Resolution, key: Key[DataSelectorConfig]) -> bool:
    """Give a selector its seed; return whether it is known.

    Its arguments and columns are checked.
    """
    fill_defaults(resolution, key)
    name = resolution.get(key.selector_type)
    if not check_name(resolution, key.selector_type, "selector", name):
        return False
    check_arguments(resolution, Chosen(key.selector_type, key.kwargs, "selector", name))
    _check_features(resolution, key)
    return True


def _check_features(resolution: Resolution, key: Key[DataSelectorConfig]) -> None:
    """Check the number of columns that a selector reads (E1891)."""
    name, columns = resolution.get(key.selector_type), resolution.get(key.feature_keys)
    entry = resolution.catalogue.entry("selector", name)
    fewest, most = (0, None) if entry is None or entry.num_features is None else entry.num_features
    if most == 0 and columns and resolution.is_own(key.feature_keys):
        text = f"`{key.feature_keys}` has no effect: selector {name} reads no columns"
        resolution.problem("W1902", key.feature_keys, text, involves=(key.selector_type,), suggestion="remove it")
    elif len(columns) < fewest or (most and len(columns) > most):
        rule = f"{fewest} columns of numbers" if most == fewest else f"at least {fewest} column of numbers"
        resolution.problem(
            "E1891",
            key.feature_keys,
            f"`{key.feature_keys}` of selector {name} must name {rule}, got {len(columns)}",
            rule=rule,
            involves=(key.selector_type,),
            suggestion="write for example `feature_keys: [pass_rate_of_a_weak_model, pass_rate_of_a_strong_model]`",
        )


def _check_feedback(resolution: Resolution, key: Key[DataSelectorConfig], *, is_trained: bool) -> None:
    """Check that a selector that learns from rewards gets some."""
    name = resolution.get(key.selector_type)
    entry = resolution.catalogue.entry("selector", name)
    if entry is None or not entry.learns_from_feedback:
        return
    if not is_trained:
        resolution.problem(
            "E1892",
            key.selector_type,
            f"`{key.selector_type}: {name}` learns from the rewards of tasks, and these rows get none",
            rule="a selector that needs no feedback",
            suggestion="write `selector_type: offline_easy2hard`, or leave it out",
        )
        return
    names = [operator.name for operator in resolution.get(OPERATORS)]
    if all(resolution.catalogue.is_built_in("operator", each) and each != TELLS_REWARDS for each in names):
        resolution.problem(
            "W1903",
            key.selector_type,
            f"`{key.selector_type}: {name}` learns nothing: no operator reports the rewards of tasks to it",
            involves=(OPERATORS,),
            suggestion=f"write `{OPERATORS}: [{{name: {TELLS_REWARDS}}}]`",
        )
