"""Hydra's overrides `a.b=c`, `+a.b=c`, `~a.b` and `~a.b=c`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trinity.common.config.dialects.foreign_key import UNSET
from trinity.common.config.dialects.hydra_values import NotAValueError, hydra_value
from trinity.common.config.dialects.table import row_of
from trinity.common.config.overrides import parse_path, put_override
from trinity.common.config.problems import Finding
from trinity.common.config.tree import Origin, Path, Tree, dotted

WRAPPED = "backend_config"
"""Section of ModelArts' form that has veRL's keys."""


def apply_hydra(tree: Tree, overrides: Iterable[tuple[int, str]]) -> tuple[Tree, list[Finding]]:
    """Return the tree with overrides applied in order, and the problems.

    Args:
        tree: values under foreign names.
        overrides: each with its number on the command line.
    """
    result = tree.copy()
    problems: list[Finding] = []
    for number, text in overrides:
        problem = _apply(result, text, number)
        if problem is not None:
            problems.append(problem)
    return result, problems


def _apply(tree: Tree, text: str, number: int) -> Finding | None:
    sign = re.match(r"[+~]*", text.strip())
    assert sign is not None, "it matches nothing, too"
    name, equals, value = text.strip()[sign.end() :].partition("=")
    given = parse_path(name.strip())
    name = name.strip().removeprefix(f"{WRAPPED}.")
    path = parse_path(name)
    file = f"override #{number}"
    is_drop = sign.group() == "~"
    if path is None or not (equals or is_drop) or sign.group() not in ("", "+", "++", "~"):
        message = f"`{text}` is no override: write a.b=c, +a.b=c or ~a.b"
        return Finding("E1944", name, message, file=file)
    path = _placed(path)
    try:
        said = hydra_value(value)
    except NotAValueError as error:
        return Finding("E1944", name, f"`{text}` is no value that hydra reads: {error}", file=file,
                       suggestion="close brackets and quotes, and put text with such signs into quotes")  # fmt: skip
    if not is_drop:
        return put_override(
            tree, path, said, Origin("foreign", file, written=given if given and given[0] == WRAPPED else path)
        )
    return _drop(tree, path, said, text, file, is_any=not equals)


def _drop(tree: Tree, path: Path, said: Any, text: str, file: str, *, is_any: bool) -> Finding | None:
    """Remove a key; with a value, only if it has that."""
    name = dotted(path)
    try:
        have, is_there = tree.get(path), True
    except KeyError:
        row = row_of(name)
        if row is None:
            return Finding("E1944", name, f"`{text}`: there is no `{name}` to remove", file=file)
        # The key is not in the file: it has veRL's default, and keeps it.
        have, is_there = (said if row.default is UNSET or row.name != name else row.default), False
    if not is_any and have != said:
        message = f"`{text}` removes `{name}` only if it is {said}, but it is {have}"
        return Finding("E1944", name, message, file=file, suggestion=f"write `~{name}`")
    if is_there:
        tree.drop(path)
    return None


def _placed(path: Path) -> Path:
    """Return the path of a key that stands beside `backend_config`."""
    return ("actor_rollout_ref", "rollout", *path) if path[0] == "engine_kwargs" else path
