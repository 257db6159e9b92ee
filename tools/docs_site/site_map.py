"""The order of the pages: the lists of links of `docs/index.md` and `docs/index.zh.md`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = {"en": ".md", "zh": ".zh.md"}
OTHER = {"en": "zh", "zh": "en"}
FOLDERS = ("docs", "examples", "benchmarks")
"""Where pages of the site are, beside the root of the repository."""


@dataclass(frozen=True)
class Part:
    """A heading of the index and the pages that are listed under it.

    Attributes:
        title: the heading.
        lines: place of the first line after the list, counted from 0.
        pages: text of the link by the path from the root of the repository.
    """

    title: str
    lines: int
    pages: dict[str, str]


def language_of(page: str) -> str:
    """Return `en` or `zh`, by the name of a page."""
    return "zh" if page.endswith(SUFFIX["zh"]) else "en"


def twin_of(page: str) -> str:
    """Return the same page in the other language, from its path."""
    own = language_of(page)
    return page.removesuffix(SUFFIX[own]) + SUFFIX[OTHER[own]]


def index_of(language: str) -> str:
    """Return the path of the page of the site map from the root."""
    return f"docs/index{SUFFIX[language]}"


def parts(text: str) -> list[Part]:
    """Return the parts of the site map.

    Args:
        text: of an index. A part is a heading of the second level with a list of which each item begins with a link.
    """
    found: list[Part] = []
    title, pages, end = "", {}, 0
    for number, line in enumerate([*text.splitlines(), "## "]):
        if line.startswith("## "):
            if pages:
                found.append(Part(title, end, pages))
            title, pages = line.removeprefix("## ").strip(), {}
        elif item := re.match(r"- \[([^\]]*)\]\(([^)#]+\.md)\)", line):
            pages[(ROOT / "docs" / item[2]).resolve().relative_to(ROOT).as_posix()] = item[1]
        if pages and line.startswith(("- ", "  ")):
            end = number + 1
    return found


def site_pages(language: str) -> list[str]:
    """Return the paths of all pages of the site in a language, sorted.

    A page that is in one language only is in both sites.
    """
    paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return [name for name in names if language_of(name) == language or twin_of(name) not in names]
