"""Where the source of a module and of a name in it lies.

Nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trinity.utils.syntax import parsed

MAX_HOPS = 8  # modules through which a name may be handed on


class NotFoundError(Exception):
    """A dotted name that leads to no source, and why."""


@dataclass(frozen=True)
class Definition:
    """Where a dotted name is defined.

    Attributes:
        module: that the definition stands in.
        path: its file.
        name: there.
    """

    module: str
    path: Path
    name: str


def find_definition(dotted: str, *, hops: int = MAX_HOPS) -> Definition:
    """Return where `package.module.Class` is defined.

    A name that a module imports from another is followed.

    Raises:
        NotFoundError: no such module on Python's path, or no such name in it.
    """
    module, _, name = dotted.rpartition(".")
    path = module_file(module)
    try:
        nodes = _body(path, path.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError) as error:
        raise NotFoundError(f"{path} cannot be read: {error}") from error
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return Definition(module, path, name)
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if (one.asname or one.name) == name and hops:
                    return find_definition(f"{_imported(node, module, path)}.{one.name}", hops=hops - 1)
    raise NotFoundError(f"{path} defines no {name}")


def module_file(module: str) -> Path:
    """Return the Python file of a module.

    Raises:
        NotFoundError: there is none on Python's path.
    """
    first, *rest = module.split(".")
    folders = _locations(first)
    for index, part in enumerate([first, *rest]):
        if index:
            folders = [folder / part for folder in folders]
        if index == len(rest):
            break
        folders = [folder for folder in folders if folder.is_dir()]
    for folder in folders:
        for file in (folder / "__init__.py", folder.with_suffix(".py")):
            if file.is_file():
                return file
    raise NotFoundError(f"no module {module} was found on Python's path")


def _locations(first: str) -> list[Path]:
    """Return where a top-level package or module may lie, without its suffix."""
    found = [Path(entry or ".").absolute() / first for entry in sys.path]
    for finder in sys.meta_path:  # of packages that are installed from where they are
        spec = finder.find_spec(first, None) if first not in sys.builtin_module_names else None
        if spec is not None and spec.origin not in (None, "built-in", "frozen"):
            origin = Path(str(spec.origin))
            found.append(origin.parent if origin.name == "__init__.py" else origin.with_suffix(""))
    return found


def _imported(node: ast.ImportFrom, module: str, path: Path) -> str:
    """Return the absolute name of the module that a statement imports from."""
    if not node.level:
        return node.module or ""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


@lru_cache(maxsize=256)
def _body(path: Path, changed_ns: int) -> tuple[ast.stmt, ...]:
    del changed_ns
    return tuple(parsed(path.read_bytes(), str(path)).body)
