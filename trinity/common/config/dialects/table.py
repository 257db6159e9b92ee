"""veRL's keys, found by their names."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from trinity.common.config.dialects.data_keys import DATA_KEYS
from trinity.common.config.dialects.foreign_key import ForeignKey
from trinity.common.config.dialects.policy_keys import ACTOR_KEYS, MODEL_KEYS, REF_KEYS
from trinity.common.config.dialects.rollout_keys import ROLLOUT_KEYS
from trinity.common.config.dialects.trainer_keys import (
    ALGORITHM_KEYS,
    CRITIC_KEYS,
    OTHER_KEYS,
    REWARD_KEYS,
    TRAINER_KEYS,
)

VERL_KEYS: tuple[ForeignKey, ...] = (
    *DATA_KEYS,
    *MODEL_KEYS,
    *ACTOR_KEYS,
    *REF_KEYS,
    *ROLLOUT_KEYS,
    *CRITIC_KEYS,
    *REWARD_KEYS,
    *ALGORITHM_KEYS,
    *TRAINER_KEYS,
    *OTHER_KEYS,
)
ANY = "*"


@functools.cache
def by_name() -> Mapping[str, ForeignKey]:
    """Return the rows of the table by the names of their keys.

    The first row of a name counts; a section may repeat what others share.
    """
    found: dict[str, ForeignKey] = {}
    for row in VERL_KEYS:
        found.setdefault(row.name, row)
    return found


@functools.cache
def inner_keys() -> Mapping[str, ForeignKey]:
    """Return the rows of sections by the names of the keys in them."""
    rows = by_name()
    return {f"{row.name}.{word}": row for row in rows.values() for word in (rows[row.newer] if row.newer else row).keys}


def row_of(name: str) -> ForeignKey | None:
    """Return the row of a key: its own, that of its section, or that of any."""
    rows = by_name()
    if name in rows:
        return rows[name]
    above = name
    while "." in above:
        above = above.rpartition(".")[0]
        row = rows.get(above)
        if row is not None and row.is_section:
            return row
        row = rows.get(f"{above}.{ANY}")
        if row is not None:
            return row
    return None


@functools.cache
def default_of(name: str) -> Any:
    """Return veRL's default of a key, `UNSET` where nothing follows from it."""
    return by_name()[name].default


@functools.cache
def children() -> Mapping[str, frozenset[str]]:
    """Return the names below each section, and of the top level below ``."""
    found: dict[str, set[str]] = {}
    for name in (*by_name(), *inner_keys()):
        *parts, last = name.split(".")
        for depth in range(len(parts) + 1):
            word = parts[depth] if depth < len(parts) else last
            found.setdefault(".".join(parts[:depth]), set()).add(word)
    return {section: frozenset(words - {ANY}) for section, words in found.items()}


def is_section(name: str) -> bool:
    """Return whether the table has keys below a name."""
    return name in children()


def homes(word: str) -> list[str]:
    """Return the keys whose last part is a word, the shortest first."""
    return sorted(
        (name for name in (*by_name(), *inner_keys()) if name.rpartition(".")[2] == word),
        key=lambda name: (name.count("."), name),
    )


def words() -> Iterable[str]:
    """Return the last parts of all keys."""
    return {name.rpartition(".")[2] for name in (*by_name(), *inner_keys())} - {ANY}
