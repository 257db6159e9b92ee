"""Both parsers of YAML, the fast one and the one that says more, read the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity.common.config import ConfigErrors, reading

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "examples").rglob("*.yaml"))
# What PyYAML refuses and libyaml takes, or the other way round, or what both read differently.
DISPUTED = (
    "a:\tb", "a: [1,\t2]", '{"a":\t1}', "a: |\n \tx", "a: |#x\n  y", "a: >-#x\n  y", "a: !\nb: 1", "? a\n: b",
    "a: {1?\" }", "a: \x85b", "a: \u2028 b", "\ufeffa: 1", "a: \udcff",
)  # fmt: skip


def read(text: str) -> Any:
    try:
        tree = reading.parse_text(text, "a.yaml")
    except ConfigErrors as error:
        return [problem.render() for problem in error.problems]
    return tree.values, tree.origins


def read_slowly(text: str) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "_FastLoader", reading._Loader)
        return read(text)


def test_libyaml_is_there() -> None:
    assert issubclass(reading._FastLoader, yaml.CSafeLoader)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_shipped_file_is_read_alike(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert read(text) == read_slowly(text)


@pytest.mark.parametrize("text", DISPUTED, ids=ascii)
def test_a_disputed_text_is_read_as_pyyaml_does(text: str) -> None:
    assert read(text) == read_slowly(text)


@settings(max_examples=2000)
@given(st.text(st.sampled_from("ab1:-,[]{}#&*!|>'\"%@`?\n  \t.~<=é中😀\x85\u2028\\"), max_size=40))
def test_any_text_is_read_alike(text: str) -> None:
    assert read(f"a: {text}") == read_slowly(f"a: {text}")


def test_an_argument_that_is_no_text_is_no_crash() -> None:
    assert reading.parse_value("a\udcff") == "a\udcff"
