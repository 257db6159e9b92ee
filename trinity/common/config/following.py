"""Keys that follow other keys: two names of one value, what a key has where it is left out, and what gives way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trinity.common.config.keys import KEYS, Key, key_at, key_named, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.schema_index import default_at, facts_below


def mirrors(section: Key[object], *, but: tuple[Key[object], ...] = ()) -> Iterator[tuple[Key[Any], Key[Any]]]:
    """Yield each key below a section that is another name of a key elsewhere, with that key.

    Args:
        section: where to look.
        but: sections in it that are left out.
    """
    for path, facts in facts_below(path_of(section)):
        if facts.mirrors is not None and not _is_in(key_at(path), but):
            yield key_at(path), key_named(facts.mirrors)


def join_mirrors(resolution: Resolution, section: Key[object], *, but: tuple[Key[object], ...] = ()) -> None:
    """Give both names of a value the one of `section` if written there, else the other; warn of two values (W1816)."""
    for key, other in mirrors(section, but=but):
        if not _is_left_out(resolution, key):
            value = resolution.get(key)
            note_overridden(resolution, other, f"overridden by {key} ({value})", value=value, involves=key)
            resolution.derive(other, resolution.get(key), f"{key} wins")
        else:
            resolution.follow(key, other)


def fill_defaults(
    resolution: Resolution, section: Key[object], *, but: tuple[Key[object], ...] = (), also: tuple[int, ...] = ()
) -> None:
    """Give each key below a section that was left out the value of the key that it follows.

    Args:
        resolution: the keys that are followed have their values.
        section: where to look.
        but: sections in it that are left out.
        also: values that mean the same as leaving a key out.
    """
    for path, facts in facts_below(path_of(section)):
        key = key_at(path)
        if facts.default_from is None or _is_in(key, but):
            continue
        if _is_left_out(resolution, key) or resolution.get(key) in also:
            source = key_named(facts.default_from)
            resolution.derive(key, facts.value_from(resolution.get(source)), source)


def _is_in(key: Key[object], sections: tuple[Key[object], ...]) -> bool:
    return any(path_of(key)[: len(path_of(section))] == path_of(section) for section in sections)


def _is_left_out(resolution: Resolution, key: Key[object]) -> bool:
    """Return whether a key has no value of its own: none at all, or its default because nobody wrote it."""
    value = resolution.get(key)
    return value in (None, "") or (not resolution.is_given(key) and value == default_at(path_of(key))[1])


def set_from(resolution: Resolution, key: Key[object], value: Any, source: object) -> None:
    """Fill a key that follows from others; one that was written must be the same (E1816)."""
    written = resolution.get(key)
    if resolution.is_own(key) and written != value:
        resolution.problem(
            "E1816",
            key,
            f"`{key}` is set from {source} ({value}), got {written}",
            rule=f"{value}",
            involves=(KEYS.algorithm.algorithm_type, KEYS.mode),
            suggestion="remove it" if " " in str(source) else f"remove it, or write `{source}`",
        )
    resolution.derive(key, value, source)


def override(resolution: Resolution, key: Key[object], *, by: Key[object]) -> None:
    """Give `key` the value of `by`, as the published guide says; a different one that was written is told (W1816)."""
    note_overridden(
        resolution, key, f"overridden by {by} ({resolution.get(by)})", value=resolution.get(by), involves=by
    )
    resolution.follow(key, by)


def note_overridden(resolution: Resolution, key: Key[object], why: str, *, value: Any, involves: Key[object]) -> None:
    """Tell that the written value of `key` does not count (W1816), unless it is `value`."""
    if resolution.is_given(key) and resolution.get(key) != value:
        resolution.problem(
            "W1816",
            key,
            f"`{key}: {resolution.get(key)}` is {why}",
            rule=f"{value}",
            involves=(involves,),
            suggestion=f"remove it, or write `{involves}`",
        )
