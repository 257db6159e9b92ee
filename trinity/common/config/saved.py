"""A completed configuration as a file that means the same when read.

A file that a run saved has every key, and `written` tells those of its user from those that were filled in. Only the
former count as written when it is read again, so that it gives the same warnings and derived values. No value of the
file is ever replaced, though: what would be filled in otherwise now, because the file was edited or the machine is
another one, counts as written, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trinity.common.config.config import Config
from trinity.common.config.masking import is_secret
from trinity.common.config.overrides import parse_path
from trinity.common.config.problems import ConfigErrors, Finding
from trinity.common.config.tree import Path, Tree, dotted, value_at
from trinity.utils.log import REDACTED

WRITTEN = "written"


def written_keys(tree: Tree, config: Config) -> tuple[str, ...]:
    """Return the keys that a user wrote, for the field `written`.

    A section that was written empty is none: all in it is filled in.
    """
    values = config.model_dump(mode="json")
    return tuple(sorted(dotted(path) for path in tree.leaves() if not _is_section(values, path) and path[0] != WRITTEN))


def references(tree: Tree, resolved: Tree) -> dict[str, str]:
    """Return the secrets that were written as `${oc.env:NAME}`, by key."""
    found = {}
    for path in resolved.leaves():
        text = tree.get(path)
        if isinstance(text, str) and "${" in text and is_secret(path, resolved.get(path)):
            found[dotted(path)] = text
    return found


def as_written(tree: Tree, completed: Callable[[Tree], Config]) -> Tree:
    """Return a file's tree without what was filled in.

    Args:
        tree: of the file; if it does not say what was written, it is returned as it is.
        completed: gives the completed configuration of a tree, or what there is of it.

    Raises:
        ConfigErrors: `written` names no keys (E1012).
    """
    names = tree.values.get(WRITTEN)
    if not isinstance(names, list):
        return tree
    kept = {_path(tree, index, name) for index, name in enumerate(names)}
    while True:
        pruned = Tree(_pruned(tree.values, kept, ()))
        pruned.origins = {path: chain for path, chain in tree.origins.items() if _has(pruned, path)}
        values = completed(pruned).model_dump(mode="json")
        more = {path for path in tree.leaves() if not _is_filled_in(tree, values, path)} - kept
        more = {path for path in more if path[0] != WRITTEN and not _is_below(path, kept)}
        if not more:
            return pruned
        kept |= more


def _path(tree: Tree, index: int, name: Any) -> Path:
    path = parse_path(name) if isinstance(name, str) else None
    if path is None:
        message = f"`{WRITTEN}` must name keys such as `a.b[1].c`, got {name!r}"
        problem = tree.problem("E1012", (WRITTEN, index), message, suggestion=f"remove it from `{WRITTEN}`")
        raise ConfigErrors([problem])
    return path


def _pruned(values: Any, kept: Collection[Path], path: Path) -> Any:
    """Return values without keys that are neither kept nor above one.

    Lists keep all entries.
    """
    if path in kept or not isinstance(values, dict | list):
        return copy.deepcopy(values)
    if isinstance(values, list):
        return [_pruned(value, kept, (*path, index)) for index, value in enumerate(values)]
    return {
        name: _pruned(value, kept, (*path, name))
        for name, value in values.items()
        if _is_below((*path, name), kept) or _is_above((*path, name), kept)
    }


def _is_filled_in(tree: Tree, values: Mapping[str, Any], path: Path) -> bool:
    """Return whether a file's value is what its key gets anyway.

    A hidden secret was never in the file.
    """
    value = tree.get(path)
    if isinstance(value, str) and REDACTED in value:
        return True
    try:
        return bool(value_at(values, path) == value)
    except KeyError:
        return False


def _is_section(values: Mapping[str, Any], path: Path) -> bool:
    try:
        value = value_at(values, path)
    except KeyError:
        return False
    return isinstance(value, dict) and bool(value)


def _is_below(path: Path, kept: Collection[Path]) -> bool:
    return any(path[:length] in kept for length in range(1, len(path) + 1))


def _is_above(path: Path, kept: Collection[Path]) -> bool:
    return any(each[: len(path)] == path for each in kept)


def _has(tree: Tree, path: Path) -> bool:
    try:
        tree.get(path)
    except KeyError:
        return False
    return True


def hidden_secrets(tree: Tree) -> list[Finding]:
    """Return an error for each secret that a saved file has hidden."""
    return [
        tree.problem(
            "E1501",
            path,
            f"`{dotted(path)}` is hidden in this file ({REDACTED}), because it was written as plain text",
            value=REDACTED,
            suggestion=f"give it with --set {dotted(path)}=..., or write ${{oc.env:NAME}}",
        )
        for path in tree.leaves()
        if isinstance(tree.get(path), str) and is_hidden(tree.get(path))
    ]


def is_hidden(text: str) -> bool:
    """Return whether a text is a hidden secret, or a URL with one."""
    is_url = "://" in text
    return text == REDACTED or (is_url and (f":{REDACTED}@" in text or f"={REDACTED}" in text))
