"""Help of commands in Chinese."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.translations import CHINESE, assert_same_names, assert_translated
from tools.reference.commands import commands
from trinity.cli.app import app
from trinity.cli.language import in_chinese, paragraphs
from trinity.utils.translations import chinese_texts


def texts_of_commands() -> dict[str, str]:
    """Return every paragraph of help by the first command that has it."""
    found: dict[str, str] = {}
    for name, command in commands():
        for text in texts_of(command):
            found.setdefault(text, name)
    return found


def texts_of(command: Any) -> Iterator[str]:
    """Yield the paragraphs of the help of a command, its arguments and its options."""
    for each in (command, *command.params):
        yield from paragraphs(each.help or "")


def shown(*words: str, locale: str) -> str:
    """Return the help that a reader with this locale sees."""
    environment = {"LC_ALL": locale, "COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner(env=environment).invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    return result.output


def test_every_help_text_has_a_translation_and_every_translation_a_text() -> None:
    assert_translated(texts_of_commands(), chinese_texts("trinity.cli"), "trinity/cli/help_zh.json")


def test_translations_are_chinese_and_keep_names() -> None:
    assert all(map(CHINESE.search, chinese_texts("trinity.cli").values()))
    assert_same_names(chinese_texts("trinity.cli"))


@pytest.mark.parametrize("words", [(), ("run",), ("export",), ("export", "sft")])
def test_a_reader_of_chinese_gets_help_in_chinese(words: tuple[str, ...]) -> None:
    chinese, english = shown(*words, locale="zh_CN.UTF-8"), shown(*words, locale="C.UTF-8")
    assert CHINESE.search(chinese) and not CHINESE.search(english)
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    for text in texts_of(command):
        assert in_chinese(text) in chinese, "a text is cut"
        assert text not in chinese


def test_a_paragraph_without_a_translation_stays_as_it_is() -> None:
    assert in_chinese("Print JSON.\n\nOf a later\nversion.") == "打印 JSON。\n\nOf a later version."
