"""Every command and block of code of every page is run by a test that says so, or is named with the reason.

A test says it by `@pytest.mark.runs(PAGES, *WHAT)`: the names of pages, with `*`, and of them all, the blocks of a
language, or the commands that begin so. `not_run.py` has what none can run.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest

from tests.docs.marks import marked
from tests.docs.not_run import BLOCKS, COMMANDS, is_of, reason
from tests.docs.pages import ROOT, Page, Snippet, pages_with_commands

MARKS = marked("runs")
NOT_RUN = (*COMMANDS, *BLOCKS)
PAGES = [page for page in pages_with_commands() if page.blocks]
SNIPPETS = [snippet for page in PAGES for snippet in page.snippets]
PROGRAMS = r"(\$ |\S*/)?(trinity|python3?|pip|make|ray|bash|docker|kubectl|sbatch|git|export|hf|[A-Z_]+=\S+) [\w./-]"
MOST_REASONS = 15


def runs(words: list[str], snippet: Snippet) -> bool:
    """Return whether a test that is marked with these words runs it."""
    pages, *what = words
    is_named = not what or any(snippet.language == each or snippet.text.startswith(each) for each in what)
    return fnmatchcase(snippet.page, pages) and is_named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_block_is_run_by_a_test_or_named_with_the_reason(page: Page) -> None:
    left = [each for each in page.snippets if not reason(each) and not any(runs(words, each) for _, words in MARKS)]
    assert [each.text for each in left] == [], "run them in a test that is marked with `runs`, see above"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_is_written_so_that_it_is_not_seen(page: Page) -> None:
    fences = re.findall(r"^[ \t>]*(?:```|~~~)", page.text, flags=re.MULTILINE)
    assert len(fences) == 2 * len(page.blocks), "fences begin at the margin, with one word behind the first"
    assert all(language for language, _ in page.blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_printed_has_no_command_of_the_reader_in_it(page: Page) -> None:
    lines = [line for code in page.code("text") for line in code.splitlines()]
    assert [line for line in lines if re.match(PROGRAMS, line)] == [], "commands are blocks of bash"


@pytest.mark.parametrize(("test", "words"), MARKS, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_mark_names_what_is_on_a_page(test: str, words: list[str]) -> None:
    pages, *what = words
    for each in what or [""]:
        one = [pages, each] if each else [pages]
        assert any(runs(one, snippet) for snippet in SNIPPETS if not reason(snippet)), (test, one)


def test_what_is_not_run_is_on_a_page_and_has_a_reason() -> None:
    assert [row for row in NOT_RUN if not any(is_of(row, snippet) for snippet in SNIPPETS)] == []
    assert all(len(why) > 15 for _, _, why in NOT_RUN) and len(NOT_RUN) <= MOST_REASONS
    for _, _, why in NOT_RUN:
        for name in re.findall(r"`([\w./]+)`", why):
            assert (ROOT / name).exists(), name


def test_the_continuous_integration_runs_what_the_list_says() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make test", "make check"} <= set(lines)
