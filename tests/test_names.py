"""One word for one thing: what the names of the package have to be."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def shared_names(files: Iterable[Path]) -> dict[str, list[str]]:
    """Return the public class names that several of `files` define, or one of them twice, with those files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(files):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.name)
    return {name: names for name, names in found.items() if len(names) > 1}


def test_no_two_public_classes_have_one_name() -> None:
    assert shared_names((ROOT / "trinity").rglob("*.py")) == {}


def test_a_name_of_two_classes_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Row: ...\nclass _Row: ...\nclass Batch: ...\n")
    (tmp_path / "b.py").write_text("class _Row: ...\ndef f():\n    class Row: ...\n")
    assert shared_names(tmp_path.glob("*.py")) == {"Row": ["a.py", "b.py"]}
