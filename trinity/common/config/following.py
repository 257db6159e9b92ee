"""Keys that depend on other keys: mirrors, defaults and overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from trinity.common.config.base import IdleWith
from trinity.common.config.keys import KEYS, Key, key_at, key_named, last_part, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.schema_index import default_at, facts_at, facts_below, holds_section

T = TypeVar("T")


def mirrors(section: Key[object], *, but: tuple[Key[object], ...] = ()) -> Iterator[tuple[Key[Any], Key[Any]]]:
    """Yield each mirroring key below a section with the key that it mirrors.

    Args:
        section: where to look.
        but: sections in it that are left out.
    """
    for path, facts in facts_below(path_of(section)):
        if facts.mirrors is not None and not _is_in(key_at(path), but):
            yield key_at(path), key_named(facts.mirrors)


def join_mirrors(resolution: Resolution, section: Key[object], *, but: tuple[Key[object], ...] = ()) -> None:
    """Give two mirrored keys one value.

    The one of `section` wins if it was written (W1816); otherwise it follows the other.
    """
    for key, other in mirrors(section, but=but):
        if not _is_left_out(resolution, key):
            value = resolution.get(key)
            note_overridden(resolution, other, f"overridden by {key} ({value})", value=value, involves=key)
            resolution.derive(other, value, f"{key} wins")
        else:
            resolution.follow(key, other)


def fill_defaults(
    resolution: Resolution, section: Key[object], *, but: tuple[Key[object], ...] = (), also: tuple[int, ...] = ()
) -> None:
    """Fill each absent key below a section from the key that it follows.

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


def join_older_names(resolution: Resolution, section: Key[object], *, but: tuple[Key[object], ...] = ()) -> None:
    """Give each key below a section the value that its other name has.

    Which of two written values counts, or that they must not differ (E1815), is declared at the field (`Renamed`).
    """
    for path, facts in facts_below(path_of(section), stops=False):
        renamed, older = facts.renamed, key_at(path)
        value = None if renamed is None or _is_in(older, but) else resolution.get(older)
        if renamed is None or value is None:
            continue
        newer = _other_key(older, renamed.new)
        if renamed.since and holds_section(path):  # of other keys, the written tree tells
            resolution.problem("W1301", older, **renamed.deprecation(older))
        if renamed.both == "older" or _is_left_out(resolution, newer):
            name = last_part(older) if path[:-1] == path_of(newer)[:-1] else older
            resolution.derive(newer, value, f"{name}, its {renamed.said} name")
        elif renamed.both == "clash" and value != resolution.get(newer):
            resolution.problem(
                "E1815",
                older,
                f"`{older}` is {value}, but {newer} is {resolution.get(newer)}",
                involves=(newer,),
                suggestion=f"keep `{newer}`",
            )


def note_idle(
    resolution: Resolution,
    section: Key[object],
    *,
    but: tuple[Key[object], ...] = (),
    is_written: Callable[[Key[Any]], bool] | None = None,
) -> None:
    """Warn about each written key below a section that another key makes idle.

    Args:
        resolution: the other keys have their values.
        section: where to look.
        but: sections in it that are left out.
        is_written: whether a key is asked for; by default, if this run or stage writes it.
    """
    for path, facts in facts_below(path_of(section)):
        key = key_at(path)
        if facts.idle_with and not _is_in(key, but) and (is_written or resolution.is_own)(key):
            for idle in facts.idle_with:
                _note_idle(resolution, key, idle)


def _note_idle(resolution: Resolution, key: Key[object], idle: IdleWith) -> None:
    other = _other_key(key, idle.key)
    value = resolution.get(other)
    if idle.holds(value):
        is_there = value not in (None, False, "", [], ())
        said = f"with {last_part(other)} {value}" if is_there else f"without {last_part(other)}"
        said += f": {idle.why}" if idle.why else ""
        rule = f"{last_part(other)} {' or '.join(map(str, idle.but))}" if idle.but else ""
        message = f"`{key}` has no effect {said}"
        resolution.problem(idle.code, key, message, rule=rule, suggestion=idle.instead)


def _other_key(key: Key[object], name: str) -> Key[Any]:
    """Return the key that a field of `key` names.

    It is one of the same section, or a dotted one, which of the top level begins with the dot.
    """
    return key_named(name.removeprefix(".")) if "." in name else key_at((*path_of(key)[:-1], name))


def fall_back(resolution: Resolution, *keys: Key[object], reason: object = "default of the guide") -> None:
    """Give each absent key the value that its field declares for this case."""
    for key in keys:
        if resolution.get(key) is None:
            resolution.derive(key, fallback_of(key), reason)


def fallback_of(key: Key[T | None]) -> T:
    """Return the value that the field of a key declares for its absence."""
    value: T | None = facts_at(path_of(key))[1].fallback
    assert value is not None, f"{key} has no `fallback`"
    return value


def _is_in(key: Key[object], sections: tuple[Key[object], ...]) -> bool:
    return any(path_of(key)[: len(path_of(section))] == path_of(section) for section in sections)


def _is_left_out(resolution: Resolution, key: Key[object]) -> bool:
    """Return whether a key has no value, or a default that was not written."""
    value = resolution.get(key)
    return value in (None, "") or (not resolution.is_given(key) and value == default_at(path_of(key))[1])


def set_from(resolution: Resolution, key: Key[object], value: Any, source: object) -> None:
    """Fill a key that follows from others; refuse a different value (E1816)."""
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
    """Give `key` the value of `by`; warn if another was written (W1816).

    The published guide says which of them wins.
    """
    note_overridden(
        resolution, key, f"overridden by {by} ({resolution.get(by)})", value=resolution.get(by), involves=by
    )
    resolution.follow(key, by)


def note_overridden(resolution: Resolution, key: Key[object], why: str, *, value: Any, involves: Key[object]) -> None:
    """Warn that the written `key` has no effect, unless it is `value` (W1816)."""
    if resolution.is_given(key) and resolution.get(key) != value:
        resolution.problem(
            "W1816",
            key,
            f"`{key}: {resolution.get(key)}` is {why}",
            rule=f"{value}",
            involves=(involves,),
            suggestion=f"remove it, or write `{involves}`",
        )
