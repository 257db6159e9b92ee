"""The page of differences: every entry has a reason, and tests that are marked with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.marks import marked
from tests.docs.pages import ROOT, Page

PAGE = Page(ROOT / "docs/differences.md")
MARK = "difference"


def entries(page: Page) -> list[list[str]]:
    """Return the cells of every entry of the page."""
    lines = [line for line in page.text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    heads = [row for row, after in zip(rows, [*rows[1:], []], strict=True) if row[0] == rows[0][0]]
    return [row for row in rows if row not in heads]


def _tests_by_entry() -> dict[str, list[str]]:
    """Return the tests by the entry that they are marked with."""
    found: dict[str, list[str]] = {}
    for test, names in marked(MARK):
        for name in names:
            found.setdefault(name, []).append(test)
    return found


MARKED = _tests_by_entry()
CASES = [row[0] for row in entries(PAGE)]


@pytest.mark.parametrize("case", CASES)
def test_an_entry_has_a_test_that_is_marked_with_its_name(case: str) -> None:
    assert MARKED.get(case), f"mark the test that shows it with @pytest.mark.{MARK}({case!r})"


def test_a_mark_names_an_entry_of_the_page() -> None:
    assert not sorted(set(MARKED) - set(CASES)), "entries of the page that are gone"


@pytest.mark.parametrize("page", [PAGE, PAGE.twin], ids=lambda page: Path(page.name).name)
def test_an_entry_says_what_is_there_what_is_here_and_why(page: Page) -> None:
    found = entries(page)
    assert len(found) == len(CASES) == len(set(CASES))
    assert all(len(row) == 4 and all(row) for row in found)
