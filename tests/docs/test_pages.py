"""The pages agree with each other, between languages, and with the code that they talk about."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from typing import Any

import pytest
import typer

from tests.docs.pages import ROOT, Page, all_pages, english_pages
from trinity.cli.app import app
from trinity.common.config import Config
from trinity.common.config.dialects.table import is_section, row_of
from trinity.common.config.schema_index import annotation_at

ALL = all_pages()
ENGLISH = english_pages()
BENCHMARKS = Page(ROOT / "benchmarks/README.md")
each_page = pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
each_linked = pytest.mark.parametrize("page", [*ALL, BENCHMARKS, BENCHMARKS.twin], ids=lambda page: page.name)
each_pair = pytest.mark.parametrize("page", [*ENGLISH, BENCHMARKS], ids=lambda page: page.name)
FILES = (".py", ".json", ".log", ".out", ".yaml", ".db", ".safetensors")


@pytest.fixture(scope="module")
def source() -> str:
    files = [
        *(ROOT / "trinity").rglob("*.py"),
        *(ROOT / "examples").glob("*/*.yaml"),
        *(ROOT / "examples").glob("*/*.sh"),
    ]
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(files))


@pytest.fixture(scope="module")
def commands() -> Any:
    return typer.main.get_command(app)


def test_every_page_exists_in_both_languages() -> None:
    assert {page.name for page in ALL} == {page.twin.name for page in ALL}
    assert {"README.md", "docs/architecture.md", "docs/differences.md"} <= {page.name for page in ENGLISH}


@each_pair
def test_both_languages_have_the_same_outline_tables_and_code(page: Page) -> None:
    other = page.twin
    assert [level for level, _ in page.headings] == [level for level, _ in other.headings]
    assert page.table_rows == other.table_rows
    assert page.blocks == other.blocks


@each_pair
def test_both_languages_name_the_same_things(page: Page) -> None:
    assert page.terms == page.twin.terms


@each_linked
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        assert target.is_relative_to(ROOT) and target.exists(), link
        assert not anchor or anchor in Page(target).anchors, link


@each_linked
def test_pages_link_to_pages_of_their_own_language(page: Page) -> None:
    own = [link.partition("#")[0] for link in page.links if ".md" in link and page.twin.path.name not in link]
    own = [link for link in own if Page((page.path.parent / link).resolve()).twin.path.exists()]
    assert all(link.endswith(".zh.md") == page.is_chinese for link in own), own
    if page.name != "CONTRIBUTING.md":
        assert page.twin.path.name in page.links


@each_page
def test_error_codes_exist(page: Page, source: str) -> None:
    missing = [code for code in set(re.findall(r"\b[EW]\d{4}\b", page.text)) if f'"{code}"' not in source]
    assert not missing


@each_page
def test_configuration_keys_exist(page: Page) -> None:
    sections = "|".join(Config.model_fields)
    keys = [t for t in page.terms if re.fullmatch(rf"({sections})(\.\w+)+", t) and not t.endswith(FILES)]
    if page.path.name.startswith(("dialects", "coming-from")):
        keys = [key for key in keys if row_of(key) is None and not is_section(key)]
    missing = [key for key in keys if annotation_at(tuple(key.split("."))) is None]
    assert not missing


@each_page
def test_files_and_python_names_exist(page: Page) -> None:
    for term in page.terms:
        if re.fullmatch(r"(trinity|tests|docs|benchmarks)/[\w./]*", term):
            assert (ROOT / term).exists(), term
        elif re.fullmatch(r"trinity(\.\w+)+", term):
            module, _, name = term.rpartition(".")
            parent = importlib.import_module(module)
            is_module = hasattr(parent, "__path__") and importlib.util.find_spec(term) is not None
            assert is_module or hasattr(parent, name), term


@each_page
def test_environment_variables_exist(page: Page, source: str) -> None:
    assert all(name in source for name in re.findall(r"\bTRINITY_[A-Z_]+\b", page.text))


def _subcommands(command: Any) -> dict[str, Any]:
    return dict(vars(command).get("commands") or {})


def _option_names(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}


def _all_options(command: Any) -> set[str]:
    return _option_names(command).union(*(_all_options(inner) for inner in _subcommands(command).values()))


@each_page
def test_documented_commands_exist(page: Page, commands: Any) -> None:
    lines = [line for code in page.code("bash") for line in code.splitlines()]
    for line in lines:
        words = shlex.split(line, comments=True)
        if not words or not words[0].endswith("trinity"):
            continue
        command = commands
        for word in words[1:]:
            below = _subcommands(command)
            if below and not word.startswith("-"):
                assert word in below, line
                command = below[word]
            elif word.startswith("-"):
                assert word in _option_names(command), line


@each_page
def test_documented_options_and_targets_exist(page: Page, commands: Any) -> None:
    known = _all_options(commands)
    options = [term.split()[0] for term in page.terms if term.startswith("--")]
    assert not [option for option in options if option not in known]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)|`make (\w+)", page.text, flags=re.MULTILINE)
    assert all(f"\n{first or second}:" in makefile for first, second in targets)


@each_page
def test_pages_stand_alone(page: Page) -> None:
    # Defaults of veRL and of the monitor MLflow.
    text = page.text.replace("`/tmp/rollout_dump`", "").replace("`http://localhost:5000`", "")
    assert not re.search(r"(^|[\s`(\"])/(work|tmp|home|root|mnt)/|\bTODO\b|https?://localhost", text)
    assert not re.search(r"^(<{7}|>{7}) ", text, flags=re.MULTILINE), "a merge left its marks"
