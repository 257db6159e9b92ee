"""Tests by what they are marked with, read from their source."""

from __future__ import annotations

import ast

from tests.docs.pages import ROOT


def marked(mark: str) -> list[tuple[str, list[str]]]:
    """Return the tests that have a mark, each with the arguments of the mark; once for each of the marks."""
    found: list[tuple[str, list[str]]] = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if f"mark.{mark}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found += [(f"{file.relative_to(ROOT)}::{node.name}", names) for names in _arguments(node, mark)]
    return found


def _arguments(test: ast.FunctionDef | ast.AsyncFunctionDef, mark: str) -> list[list[str]]:
    calls = [each for each in test.decorator_list if isinstance(each, ast.Call)]
    marks = [each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == mark]
    return [[ast.literal_eval(name) for name in each.args] for each in marks]
