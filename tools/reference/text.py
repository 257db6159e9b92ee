"""What the made pages share: their heads, tables and cells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("en", "zh")


def file_of(name: str, language: str) -> str:
    """Return the path of a page from the root of the repository."""
    return f"docs/{name}{'.zh' * (language == 'zh')}.md"


def head(name: str, language: str, title: str, intro: str) -> list[str]:
    """Return the first lines of a page, with the link to its twin."""
    other = f"[English]({name}.md)" if language == "zh" else f"[中文]({name}.zh.md)"
    return [f"# {title}", "", other, "", *intro.strip().splitlines()]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, a blank one first; its cells are made fit for it."""
    lines = ["", row(columns), "|" + "---|" * len(columns)]
    return lines + [row([cell(each) for each in cells]) for cells in rows]


def row(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    """Return a text as a cell: one line, without marks of tables and tags, those in backticks aside."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    plain = [part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*") for part in parts]
    return "".join(plain).replace("|", r"\|") or "-"


def code(value: Any) -> str:
    """Return a value as YAML has it, in backticks."""
    if isinstance(value, str) and value:
        return f"`{value}`"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def finished(lines: Iterable[str]) -> str:
    """Return the text of a page."""
    return "\n".join(lines) + "\n"
