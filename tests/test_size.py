"""Files, functions and the first lines of docstrings stay short enough to be read at a glance."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_FIRST_LINE = 72
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def long_files(directory: Path) -> list[str]:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in directory.rglob("*.py")}
    return [f"{path.relative_to(directory)}: {size} lines" for path, size in sizes.items() if size > MAX_FILE_LINES]


def long_functions(directory: Path) -> list[str]:
    found = []
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, FUNCTIONS) and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES:
                found.append(f"{path.relative_to(directory)}:{node.lineno} {node.name}")
    return found


def long_first_lines(directory: Path) -> list[str]:
    found = []
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if len(first) > MAX_FIRST_LINE:
                    found.append(f"{path.relative_to(directory)}: {first}")
    return found


@pytest.mark.parametrize("folder", ["trinity", "tests"])
def test_files_have_at_most_400_lines(folder: str) -> None:
    assert long_files(ROOT / folder) == []


@pytest.mark.parametrize("folder", ["trinity", "tests"])
def test_functions_have_at_most_60_lines(folder: str) -> None:
    assert long_functions(ROOT / folder) == []


def test_first_lines_of_docstrings_have_at_most_72_characters() -> None:
    assert long_first_lines(ROOT / "trinity") == []


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    body = "\n".join(["    x = 1"] * 60)
    (tmp_path / "long.py").write_text(f"async def f():\n{body}\n" + "\n" * 340, encoding="utf-8")
    (tmp_path / "short.py").write_text("def g():\n    return 1\n", encoding="utf-8")
    assert long_files(tmp_path) == ["long.py: 401 lines"]
    assert long_functions(tmp_path) == ["long.py:1 f"]
    wide = f'"""{"x" * 72}\n\n{"y" * 73}"""\nclass C:\n    """{"z" * 73}"""\n'
    (tmp_path / "wide.py").write_text(wide, encoding="utf-8")
    assert long_first_lines(tmp_path) == [f"wide.py: {'z' * 73}"]
