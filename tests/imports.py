"""Which module of the package imports which, as its source says, and the cycles of that."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path


def modules(folder: Path) -> dict[str, Path]:
    """Return the file of each module of the package in `folder`, by its dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(folder: Path) -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports, in functions and for type checkers, too."""
    files = modules(folder)
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found = (_module(named, files) for node in nodes for named in _named(node))
        graph[name] = {target for target in found if target is not None and target != name}
    return graph


def _named(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield module and name of everything that `node` imports, if it is an import."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from ((node.module or "", alias.name) for alias in node.names)


def _module(named: tuple[str, str], files: Mapping[str, Path]) -> str | None:
    module, name = named
    if f"{module}.{name}" in files:
        return f"{module}.{name}"
    return module if module in files else None


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, each sorted."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {tuple(sorted(n for n in reached[name] if name in reached[n])) for name in graph if name in reached[name]}
    return [list(group) for group in sorted(groups)]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [*graph[start]]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph[name]
    return seen
