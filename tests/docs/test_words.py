"""Pages, messages and docstrings are in plain words, with one name for one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.words import CHINESE, CODE_PATTERNS, IN_CODE, INSTEAD, PATTERNS, odd_words, texts_of

BENCHMARKS = Page(ROOT / "benchmarks/README.md")
PAGES = [*all_pages(), BENCHMARKS, BENCHMARKS.twin]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_plain_words(page: Page) -> None:
    assert not list(odd_words(page.text))


@pytest.mark.parametrize("folder", sorted(path.name for path in (ROOT / "trinity").iterdir() if path.is_dir()))
def test_messages_and_docstrings_use_plain_words(folder: str) -> None:
    modules = sorted((ROOT / "trinity" / folder).rglob("*.py"))
    found = {path: list(odd_words(texts_of(path), CODE_PATTERNS)) for path in modules}
    assert not {str(path.relative_to(ROOT)): words for path, words in found.items() if words}


def test_metrics_are_explained_in_plain_words() -> None:
    text = (ROOT / "trinity/explain/metrics.yaml").read_text(encoding="utf-8")
    assert not list(odd_words(text, CODE_PATTERNS))


def test_odd_words_are_found_in_pages_messages_and_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""What became\nof it."""\nraise ValueError(f"{1} goes " f"on to the bit")\n', encoding="utf-8")
    found = list(odd_words(texts_of(module)))
    assert [each.split("; ")[0] for each in found] == [
        "line 3: 'to the bit'",
        "line 1: 'became of'",
        "line 3: 'goes on'",
    ]
    assert not list(odd_words("It continues; trainers step; what often happens to linear layers."))
    assert [each.split("; ")[1] for each in odd_words("见离策略")] == ["write 'off-policy'"]
    assert len(PATTERNS) == len(INSTEAD) + len(CHINESE)
    assert len(CODE_PATTERNS) == len(PATTERNS) + len(IN_CODE)


def test_words_of_the_glossary_stand_for_what_they_mean() -> None:
    texts = ("its repeats", "the best answers to it", "two task\nsets", "The client has gone.", "3 training samples")
    assert all(list(odd_words(text, CODE_PATTERNS)) for text in texts)
    allowed = "Attempt the task; if the task sets any; the answer of a server; the truth is the answer; amendment."
    assert not list(odd_words(allowed, CODE_PATTERNS))
