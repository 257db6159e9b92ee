"""The documentation as data: pages, headings, code blocks, links and what stands in backticks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """What a reader runs at once: a line of a block of bash, or the whole block of another language.

    Attributes:
        page: name of its page.
        language: of the block.
        block: the whole block.
        text: what is run.
    """

    page: str
    language: str
    block: str
    text: str


@dataclass(frozen=True)
class Page:
    """One page in one language."""

    path: Path

    @property
    def name(self) -> str:
        """Path from the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def is_chinese(self) -> bool:
        """Whether this is the Chinese half of a pair."""
        return self.path.name.endswith(".zh.md")

    @property
    def twin(self) -> Page:
        """The same page in the other language."""
        old, new = (".zh.md", ".md") if self.is_chinese else (".md", ".zh.md")
        return Page(self.path.with_name(self.path.name.removesuffix(old) + new))

    @cached_property
    def text(self) -> str:
        """The whole page."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The page without its code blocks."""
        return FENCE.sub("", self.text)

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and code of every block."""
        return FENCE.findall(self.text)

    def code(self, language: str) -> list[str]:
        """The blocks of one language."""
        return [code for kind, code in self.blocks if kind == language]

    @property
    def snippets(self) -> list[Snippet]:
        """All that a reader runs; blocks of `text` are what programs print, and pictures."""
        found: list[Snippet] = []
        for language, code in self.blocks:
            parts = command_lines(code) if language == "bash" else [code] if language != "text" else []
            found += [Snippet(self.name, language, code, part) for part in parts]
        return found

    def lines(self, begins: str) -> list[str]:
        """Return the commands that begin so."""
        return [each.text for each in self.snippets if each.language == "bash" and each.text.startswith(begins)]

    @property
    def headings(self) -> list[tuple[int, str]]:
        """Level and title of every heading."""
        found = re.findall(r"^(#+) (.+)$", self.prose, flags=re.MULTILINE)
        return [(len(marks), title) for marks, title in found]

    @property
    def anchors(self) -> set[str]:
        """What links may name after `#`, as code hosts derive it from the headings."""
        titles = (title.strip().lower() for _, title in self.headings)
        return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}

    @property
    def links(self) -> list[str]:
        """Targets of links and images."""
        return re.findall(r"\]\(([^)]+)\)", self.prose)

    @property
    def terms(self) -> set[str]:
        """What stands in single backticks."""
        return set(re.findall(r"`([^`\n]+)`", self.prose))

    @property
    def table_rows(self) -> list[int]:
        """Number of columns of every table row."""
        rows = re.findall(r"^\|.*\|$", self.prose, flags=re.MULTILINE)
        return [row.count("|") for row in rows]


def command_lines(code: str) -> list[str]:
    """Return the commands of a block of bash; one that goes on behind a backslash is one."""
    return [line for line in re.split(r"(?<!\\)\n", code) if line.strip()]


def all_pages() -> list[Page]:
    """Return every page of the documentation, both languages."""
    folders = (ROOT / "docs").rglob("*.md"), (ROOT / "examples").rglob("*.md")
    return [Page(path) for path in sorted([*ROOT.glob("*.md"), *(path for found in folders for path in found)])]


def english_pages() -> list[Page]:
    """Return the English pages."""
    return [page for page in all_pages() if not page.is_chinese]


def pages_with_commands() -> list[Page]:
    """Return the English pages, and that of the benchmarks, which is not on the site."""
    return [*english_pages(), page("benchmarks/README.md")]


def page(name: str) -> Page:
    """Return the page of a path from the root."""
    return Page(ROOT / name)
