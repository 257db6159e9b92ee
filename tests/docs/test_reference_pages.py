"""The pages of the reference are what the source says."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT, page
from tests.translations import CHINESE, assert_translated
from tools.reference.api import names_by_module
from tools.reference.commands import EXIT_CODES, commands
from tools.reference.keys import LEFT_OUT, an_instance_of, sections
from tools.reference.pages import pages
from tools.reference.plugin_classes import SHOWN, entries_of, loaded, registries
from tools.reference.signatures import methods, summary, translations
from tools.reference.text import cell
from trinity.common.config import Config
from trinity.common.config.schema_index import fields_of, holds_section, model_at
from trinity.common.config.tree import dotted
from trinity.common.errors import ExitCode
from trinity.utils.kinds import KINDS

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_from_the_source(name: str) -> None:
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == PAGES[name], "run python -m tools.reference"


def test_what_would_end_a_cell_or_begin_a_tag_is_written_otherwise() -> None:
    assert cell("a | b <c>\n`<d>` *") == r"a \| b &lt;c> `<d>` \*"
    assert cell("") == "-"


def test_the_page_of_keys_has_every_key_once_or_names_the_section_with_the_same_keys() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", page("docs/keys.md").text, flags=re.MULTILINE)
    assert len(rows) == len(set(rows)) > 500
    alike = r"^#+ `([^`]+)`\n\nThe same keys as \[`([^`]+)`\]"
    same = dict(re.findall(alike, page("docs/keys.md").text, flags=re.MULTILINE))
    assert len(same) > 4
    for path, _ in fields_of(Config):
        place = an_instance_of(path)
        if place[0] in LEFT_OUT or holds_section(path):
            continue
        name = dotted(place)
        around = next((section for section in same if name.startswith(f"{section}.")), None)
        assert name in rows if around is None else True, name
    sections_at = {dotted(path): model_at(path) for path in sections()}
    assert all(sections_at[section] is sections_at[other] for section, other in same.items())


def test_every_docstring_of_the_pages_has_its_chinese() -> None:
    texts = {text: place for text, place in lines_of_docstrings() if text}
    assert_translated(texts, translations(), "tools/reference/docstrings_zh.json")
    assert all(map(CHINESE.search, translations().values()))


def lines_of_docstrings() -> Iterator[tuple[str, str]]:
    """Yield the first line of each docstring on the pages, without its full stop, and what has it."""
    for module, names in names_by_module().items():
        for name in names:
            yield summary(getattr(importlib.import_module(module), name)).removesuffix("."), f"{module}.{name}"
    for kind, (_, registry) in registries().items():
        for base in SHOWN[kind].bases:
            yield from ((summary(each).removesuffix("."), f"{base}.{name}") for name, each in methods(loaded(base)))
        yield from ((entry.doc.removesuffix("."), f"{kind} {name}") for name, entry in entries_of(registry).items())


def test_every_exit_code_has_its_meaning() -> None:
    assert [code for codes in EXIT_CODES for code in codes] == list(ExitCode)


def test_every_command_that_is_not_hidden_has_a_heading() -> None:
    names = [title.strip("`") for _, title in page("docs/cli.md").headings if title.startswith("`")]
    assert names == [name for name, _ in commands()]
    assert {"trinity", "trinity run", "trinity export dpo"} <= set(names) and "trinity perf" not in names


def test_every_registry_is_on_the_page_of_classes() -> None:
    assert set(SHOWN) == set(KINDS)
    text = page("docs/plugin-classes.md").text
    assert all(f".{kind.variable}`. Named by: " in text for kind in KINDS.values())
