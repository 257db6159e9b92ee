"""Checks of each written value against the support that its key declares.

The schema has every key of the published configuration. A key that is not fully served is marked where it is
declared (`Facts`): not yet (`E1900`), or for a permanent reason. Such a value is reported, never ignored.
Defaults are always accepted.
"""

from __future__ import annotations

from typing import Any

from trinity.common.config.base import Idle, Support
from trinity.common.config.keys import CRITIC, REWARD_MODEL, Key, key_at, key_named, path_of
from trinity.common.config.refusals import is_default, is_served, section_refusal, support_refusal
from trinity.common.config.resolution import Resolution, plain_value
from trinity.common.config.rules.critic import may_read_values
from trinity.common.config.schema_index import default_at, facts_at, holds_section
from trinity.common.config.tree import Path, value_at


def check_available(resolution: Resolution) -> None:
    """Note once each written value that is refused or changes nothing."""
    told: set[Path | str] = set()
    for path in dict.fromkeys(_value_path(leaf) for leaf in resolution.tree.leaves()):
        place, facts = facts_at(path)
        if facts.idle is not None and facts.idle.why not in told and facts.idle.holds(_value(resolution, path)):
            _warn(resolution, key_at(path), facts.idle, _value(resolution, path))
            told.add(facts.idle.why)
        at = place if holds_section(place) or (facts.support and facts.support.why) else path
        if facts.support is None or at in told or _is_unused(resolution, path):
            continue
        if _is_refused(resolution, at, facts.support):
            _refuse(resolution, at, facts.support)
            told.add(at)


def _warn(resolution: Resolution, key: Key[object], idle: Idle, value: Any) -> None:
    said = f"`{key}: {str(value).lower()}` has no effect: {idle.why}"
    resolution.problem("W1902", key, said, suggestion="remove it")


def _is_refused(resolution: Resolution, path: Path, support: Support) -> bool:
    if holds_section(path):
        return resolution.is_given(key_at(path)) and resolution.tree.get(path) not in ({}, [], "None")
    value = _value(resolution, path)
    return not (is_served(support, value) or _is_default(path, value) or _is_repeated(resolution, path, value))


def _refuse(resolution: Resolution, path: Path, support: Support) -> None:
    key = key_at(path)
    if holds_section(path):
        resolution.refuse(section_refusal(key, support))
    else:
        value = _value(resolution, path)
        resolution.refuse(support_refusal(key, support, value, default=default_at(path)[1]))


def _value_path(leaf: Path) -> Path:
    """Return the path of the value of a leaf; a list of words is one value."""
    while leaf and isinstance(leaf[-1], int):
        leaf = leaf[:-1]
    return leaf


def _is_unused(resolution: Resolution, path: Path) -> bool:
    """Return whether this run does not read the section of a key.

    That is the explorer's in mode train, and the critic's in a run without one.
    """
    trainer = resolution.config.trainer
    if path[:3] == path_of(CRITIC) and not may_read_values(resolution):
        return True
    is_scored = trainer.trainer_config.reward_model.enable or path == path_of(REWARD_MODEL.reward_manager)
    if path[:3] == path_of(REWARD_MODEL) and not is_scored:
        return True
    if "megatron" in path and trainer.trainer_strategy != "megatron":
        return True
    return not resolution.explores and (path[0] == "explorer" or path[:2] == ("buffer", "explorer_input"))


def _value(resolution: Resolution, path: Path) -> Any:
    """Return the written value as the schema reads it.

    For example, `no` is false and `None` is null.
    """
    try:
        return plain_value(value_at(resolution.typed, path))
    except KeyError:
        return resolution.tree.get(path)


def _is_repeated(resolution: Resolution, path: Path, value: Any) -> bool:
    """Return whether a key only repeats the value of another key."""
    facts = facts_at(path)[1]
    other = facts.mirrors or facts.default_from
    return other is not None and bool(facts.value_from(resolution.get(key_named(other))) == value)


def _is_default(path: Path, value: Any) -> bool:
    has_default, default = default_at(path)
    return value is None or (has_default and is_default(value, default))
