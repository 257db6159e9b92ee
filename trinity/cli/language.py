"""The help of commands in the reader's language."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup

from trinity.summary.words import is_chinese
from trinity.utils.translations import chinese_texts


def in_chinese(text: str) -> str:
    """Return a help text in Chinese; a paragraph without translation stays."""
    translated = chinese_texts("trinity.cli")
    return "\n\n".join(translated.get(each, each) for each in paragraphs(text))


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text, a line each."""
    yield from (" ".join(part.split()) for part in text.split("\n\n") if part.strip())


def translate(command: Any) -> None:
    """Put the help of a command and all commands below it into Chinese.

    It is printed without panels, in which rich would cut a text without spaces at the end of its column.
    """
    command.rich_markup_mode = None
    for each in (command, *command.params):
        each.help = in_chinese(each.help) if getattr(each, "help", None) else None
    for below in dict(vars(command).get("commands") or {}).values():
        translate(below)


class TranslatedGroup(TyperGroup):
    """A group of commands whose help is in Chinese for a reader of Chinese."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line as `TyperGroup` does."""
        if is_chinese(os.environ):
            translate(self)
        return super().main(*args, **kwargs)
