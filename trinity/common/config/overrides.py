"""`--set a.b=c`: values from the command line; problems name their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trinity.common.config.problems import Finding
from trinity.common.config.reading import parse_value
from trinity.common.config.tree import MAX_DEPTH, Origin, Path, Tree, dotted
from trinity.utils.log import is_secret_name, redact

_PATH = re.compile(r"[^.\[\]=]+|\[\d+\]")
_WORD = re.compile(r"\w+")
_WHOLE = re.compile(r"^[^.\[\]=]+(\[\d+\]|\.[^.\[\]=]+)*$")


def parse_path(text: str) -> Path | None:
    """Return the path of `stages[1].a.b`, or `None` if the text is no path."""
    if not _WHOLE.match(text):
        return None
    return tuple(int(p[1:-1]) if p.startswith("[") else p.strip() for p in _PATH.findall(text))


def apply_overrides(tree: Tree, overrides: Sequence[str]) -> tuple[Tree, list[Finding]]:
    """Return the tree with each `a.b=c` applied in order, and the problems."""
    result = tree.copy()
    problems: list[Finding] = []
    for number, override in enumerate(overrides, start=1):
        name, equals, text = override.partition("=")
        path = parse_path(name.strip())
        origin = Origin("set", f"--set #{number}", written=path or ())
        if path is None or not equals:
            has_secret = any(map(is_secret_name, _WORD.findall(override)))
            shown = f"#{number}" if has_secret else redact(override)
            problems.append(
                Finding(
                    "E1008",
                    "" if has_secret else name,
                    f"`--set {shown}` is not of the form a.b=c",
                    file=origin.file,
                    suggestion="write --set section.key=value",
                )
            )
            continue
        if len(path) > MAX_DEPTH:
            message = f"the key of `--set` #{number} is nested deeper than {MAX_DEPTH} levels"
            problems.append(Finding("E1007", dotted(path[:4]), message, file=origin.file))
            continue
        problem = put_override(result, path, parse_value(text), origin)
        if problem is not None:
            problems.append(problem)
    return result, problems


def put_override(tree: Tree, path: Path, value: Any, origin: Origin) -> Finding | None:
    """Write a value to a tree, with the sections above it.

    Return why there is no place for it (E1009), or None.
    """
    node: Any = tree.values
    for depth, part in enumerate(path[:-1]):
        here = path[: depth + 1]
        if isinstance(part, int):
            if not isinstance(node, list) or part >= len(node):
                return _no_place(origin, path, here, node)
            node = node[part]
        elif isinstance(node, dict):
            if not isinstance(node.get(part), dict | list):
                node[part] = {}
                tree.origins[here] = (origin,)
            node = node[part]
        else:
            return _no_place(origin, path, here, node)
    last = path[-1]
    if isinstance(last, int):
        if not isinstance(node, list) or last >= len(node):
            return _no_place(origin, path, path, node)
    elif not isinstance(node, dict):
        return _no_place(origin, path, path, node)
    before = tree.origins.get(path, ())
    for other in [p for p in tree.origins if len(p) > len(path) and p[: len(path)] == path]:
        del tree.origins[other]
    node[last] = value
    tree.origins[path] = (origin, *before)
    return None


def _no_place(origin: Origin, path: Path, here: Path, node: Any) -> Finding:
    have = f"has {len(node)} items" if isinstance(node, list) else "is no list or mapping"
    return Finding(
        "E1009",
        dotted(path),
        f"`{dotted(path)}`: there is no `{dotted(here)}`; `{dotted(here[:-1]) or 'the configuration'}` {have}",
        file=origin.file,
    )
