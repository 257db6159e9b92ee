"""Values of a YAML file together with the places they come from.

A path is a tuple of mapping keys and list indices. Each path has a chain of origins, the one that counts first:
a stage's line, the global line that it overrides, a `--set` argument, an environment variable.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from trinity.common.config.base import Section
from trinity.common.config.problems import Finding

Path = tuple[str | int, ...]
MAX_DEPTH = 64
"""Longest path of a configuration."""


@dataclass(frozen=True)
class Origin:
    """One place of a value.

    Attributes:
        kind: `file`, `stage` (a line of a stage), `set` (`--set`), `env`, or `foreign` (a key of another tool).
        file: the YAML file, or `--set #n`, or the environment variable.
        line: line from 1.
        column: column from 1.
        written: the path in the file, such as `("stages", 0, "mode")`.
        text: the line.
    """

    kind: str
    file: str
    line: int | None = None
    column: int | None = None
    written: Path = ()
    text: str | None = None

    def describe(self) -> str:
        """Return the place as text, such as `run.yaml:7` or `--set #1`."""
        if self.kind == "env":
            return f"environment variable {self.file}"
        return f"{self.file}:{self.line}" if self.line is not None else self.file


class Words(Protocol):
    """How problems speak of a file of another tool."""

    def problem(self, tree: Tree, path: Path, found: Finding) -> Finding:
        """Return a finding about a path of ours as one about that file."""
        ...


@dataclass
class Tree:
    """Plain values and the origins of every path.

    Attributes:
        values: nested.
        origins: of each path, the one that counts first.
        words: those of the file of another tool that became these values; problems speak in them.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, tuple[Origin, ...]] = field(default_factory=dict)
    words: Words | None = None

    def copy(self) -> Tree:
        """Return an independent copy."""
        return Tree(copy.deepcopy(self.values), dict(self.origins), self.words)

    def origin(self, path: Path) -> Origin | None:
        """Return the origin of a path, or of the nearest enclosing one."""
        while path:
            chain = self.origins.get(path)
            if chain:
                return chain[0]
            path = path[:-1]
        return None

    def get(self, path: Path) -> Any:
        """Return the value at a path; raises KeyError if there is none."""
        return value_at(self.values, path)

    def put(self, path: Path, value: Any) -> None:
        """Replace the value at a path that exists, or add a mapping key."""
        parent: Any = self.get(path[:-1])
        parent[path[-1]] = value

    def drop(self, path: Path) -> None:
        """Remove a path, if it is there, and the origins below it."""
        parent: Any = self.get(path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        for other in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[other]

    def leaves(self) -> list[Path]:
        """Return the paths of scalars and empty lists and mappings, in order."""
        found: list[Path] = []
        _walk(self.values, (), found)
        return found

    def problem(self, code: str, path: Path, message: str, **details: Any) -> Finding:
        """Return a problem at the origin of a path, with more fields of `Finding`."""
        if self.words is not None:
            return self.words.problem(self, path, Finding(code, dotted(path), message, **details))
        return _place_problem(self.origin(path), code, path, message, **details)


def value_at(values: Any, path: Path) -> Any:
    """Return the value at a path of sections, dicts, lists and tuples.

    Raises KeyError if there is none.
    """
    for part in path:
        values = vars(values) if isinstance(values, Section) else values
        is_item = isinstance(values, list | tuple) and part in range(len(values))
        if not is_item and not (isinstance(values, dict) and part in values):
            raise KeyError(dotted(path))
        values = values[part]
    return values


def _place_problem(origin: Origin | None, code: str, path: Path, message: str, **details: Any) -> Finding:
    """Return a problem at an origin."""
    key = dotted(_written_path(origin, path))
    message = message.replace(f"`{dotted(path)}`", f"`{key}`")
    if origin is None:
        return Finding(code, key, message, **details)
    return Finding(
        code,
        key,
        message,
        file=origin.file,
        line=origin.line,
        column=origin.column,
        source_line=origin.text,
        **details,
    )


def _written_path(origin: Origin | None, path: Path) -> Path:
    """Return a path as written: inside `stages[i]` if it comes from a stage."""
    if origin is None or origin.written[:1] != ("stages",) or path[:1] == ("stages",):
        return path
    return (*origin.written[:2], *path)


def dotted(path: Path) -> str:
    """Return a path as in `--set`: `stages[1].algorithm.optimizer.lr`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def _walk(value: Any, path: Path, found: list[Path]) -> None:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            _walk(child, (*path, name), found)
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            _walk(child, (*path, index), found)
    elif path:
        found.append(path)
