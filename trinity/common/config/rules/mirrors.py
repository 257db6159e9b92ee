"""Keys that follow other keys: two names of one value, and what a key has where it is left out."""

from __future__ import annotations

from trinity.common.config.draft import Draft, path_of
from trinity.common.config.schema_index import default_at, facts_below
from trinity.common.config.tree import dotted


def mirrors(section: str, *, but: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return each key below a section that is another name of a key elsewhere, with that key.

    Args:
        section: dotted path.
        but: sections in it that are left out.
    """
    below = ((dotted(path), facts.mirrors) for path, facts in facts_below(path_of(section)))
    return [(key, other) for key, other in below if other is not None and not key.startswith(but)]


def join_mirrors(draft: Draft, section: str, *, but: tuple[str, ...] = ()) -> None:
    """Give both names of a value the one of `section` if it was written there, else the other one."""
    for key, other in mirrors(section, but=but):
        if not _is_left_out(draft, key):
            draft.derive(other, draft.get(key), f"{key} wins")
        else:
            draft.derive(key, draft.get(other), other)


def fill_defaults(draft: Draft, section: str, *, but: tuple[str, ...] = (), also: tuple[int, ...] = ()) -> None:
    """Give each key below a section that was left out the value of the key that it follows.

    Args:
        draft: the keys that are followed have their values.
        section: dotted path.
        but: sections in it that are left out.
        also: values that mean the same as leaving a key out.
    """
    for path, facts in facts_below(path_of(section)):
        key = dotted(path)
        if facts.default_from is None or key.startswith(but):
            continue
        if _is_left_out(draft, key) or draft.get(key) in also:
            draft.derive(key, draft.get(facts.default_from), facts.default_from)


def _is_left_out(draft: Draft, key: str) -> bool:
    """Return whether a key has no value of its own: none at all, or its default because nobody wrote it."""
    value = draft.get(key)
    return value in (None, "") or (not draft.is_given(key) and value == default_at(path_of(key))[1])
