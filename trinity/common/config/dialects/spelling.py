"""The key that was meant by one that the table lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trinity.common.config.dialects.foreign_key import ForeignKey
from trinity.common.config.dialects.table import children, homes, is_section, row_of, words
from trinity.common.config.nearest import distance, nearest
from trinity.common.config.problems import Finding
from trinity.common.config.tree import Path, Tree, dotted

NEAR = 2
"""Edits within which a key of an open section is a typing error."""


class AsWritten:
    """How problems speak of a foreign file before its values are ours."""

    def problem(self, tree: Tree, path: Path, found: Finding) -> Finding:
        """Return a finding with the key as the file has it, and its place."""
        origin, key = tree.origin(path), dotted(written_path(tree, path))
        where: dict[str, Any] = {} if origin is None else {
            "file": origin.file, "line": origin.line, "column": origin.column, "source_line": origin.text,
        }  # fmt: skip
        return replace(found, key=key, message=found.message.replace(f"`{dotted(path)}`", f"`{key}`"), **where)


def unknown(tree: Tree, path: Path) -> Finding:
    """Return the finding of a foreign key that the table lacks (E1941)."""
    place = next((path[:depth] for depth in range(1, len(path)) if not is_section(dotted(path[:depth]))), path)
    word, above = str(place[-1]), dotted(place[:-1])
    message = f"`{dotted(place)}` is no key of veRL"
    return tree.problem("E1941", place, message, suggestion=_meant(word, above, rest=path[len(place) :]))


def strays(row: ForeignKey, value: Any) -> list[str]:
    """Return the keys that a section has, and that it does not know."""
    if not isinstance(value, dict) or not row.keys:
        return []
    return [
        name
        for name in value
        if name not in (*row.keys, "_target_")
        and (not row.is_open or min(distance(str(name), known) for known in row.keys) <= NEAR)
    ]


def written_path(tree: Tree, path: Path) -> Path:
    """Return a path as the file has it.

    Sections above it may be known only from what an override wrote in them.
    """
    depth = next((depth for depth in range(len(path), 0, -1) if tree.origins.get(path[:depth])), 0)
    written = tree.origins[path[:depth]][0].written if depth else ()
    if not written:
        return path
    ends = [end for end in range(len(written), 0, -1) if written[end - 1] == path[depth - 1]]
    return (*written[: ends[0] if ends else None], *path[depth:])


def meant(path: Path) -> str:
    """Return the way out for a reference to a key that is not there."""
    return _meant(str(path[-1]), dotted(path[:-1]), rest=())


def _meant(word: str, above: str, *, rest: Path) -> str:
    here = children().get(above, frozenset())
    near = nearest(word, here)
    elsewhere = [home for home in homes(word) if not rest or row_of(f"{home}.{dotted(rest)}") is not None]
    if near is not None and (distance(word, near) == 1 or not elsewhere):
        return f"did you mean `{near}`?"
    if elsewhere:
        return f"write `{max(elsewhere, key=lambda home: (_shared(home, above), -home.count('.')))}`"
    far = nearest(word, words())
    if far is not None:
        return f"did you mean `{max(homes(far), key=lambda home: (_shared(home, above), -home.count('.')))}`?"
    return f"known here: {', '.join(sorted(here))}"


def _shared(left: str, right: str) -> int:
    count = 0
    for one, other in zip(left.split("."), right.split("."), strict=False):
        if one != other:
            break
        count += 1
    return count
