"""The grammar of values in hydra's overrides: numbers, text, lists, dicts."""

from __future__ import annotations

import re
from typing import Any

_INT = re.compile(r"[+-]?(0|[1-9]\d*(_\d+)*)")
_FLOAT = re.compile(r"[+-]?((\d+(_\d+)*)?\.\d+(_\d+)*|\d+(_\d+)*\.?)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
_WORDS = {"null": None, "true": True, "false": False}
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")


class NotAValueError(Exception):
    """The text is no value in hydra's grammar; the message says why."""


def hydra_value(text: str) -> Any:
    """Return the value of an override.

    A list is `[a, b]`, a dict `{a: 1, b: {c: 2}}`, with or without spaces; text may be in quotes, and otherwise needs a
    backslash before a comma, colon, bracket or equals sign inside of a list or dict. Interpolations are left as they
    are.

    Raises:
        NotAValueError: a bracket or quote is not closed, or something follows the value.
    """
    text = text.strip()
    if not text or text[0] not in "[{'\"":
        return _plain(text)
    reader = _Reader(text)
    value = reader.element("")
    if reader.at < len(text):
        raise NotAValueError(f"`{text[reader.at :]}` follows the value")
    return value


def _plain(text: str) -> Any:
    """Return text without quotes: a number, a word, or itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _ESCAPED.sub(r"\1", text)


class _Reader:
    """Reads one value from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def element(self, ends: str) -> Any:
        """Return the value that begins here, which one of `ends` follows."""
        self._skip()
        first = self.text[self.at : self.at + 1]
        if first == "[":
            value: Any = self._items()
        elif first == "{":
            value = self._pairs()
        elif first and first in "'\"":
            value = self._quoted(first)
        else:
            value = _plain(self._until(ends))
            if value == "":
                raise NotAValueError(f"a value is missing before `{self.text[self.at :]}`")
        self._skip()
        return value

    def _items(self) -> list[Any]:
        found: list[Any] = []
        while self._goes_on("]", is_first=not found):
            found.append(self.element(",]"))
        return found

    def _pairs(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while self._goes_on("}", is_first=not found):
            self._skip()
            is_quoted = self.text[self.at : self.at + 1] in ("'", '"')
            name = self._quoted(self.text[self.at]) if is_quoted else _plain(self._until(":,}"))
            self._skip()
            if self.text[self.at : self.at + 1] != ":":
                raise NotAValueError(f"`{name}` has no colon and value")
            if name in found:
                raise NotAValueError(f"`{name}` is there twice")
            self.at += 1
            found[name] = self.element(",}")
        return found

    def _goes_on(self, end: str, *, is_first: bool) -> bool:
        """Step over what begins, separates or ends; return whether more comes."""
        here = self.text[self.at : self.at + 1]
        self.at += 1
        if not is_first and here == end:
            return False
        if not is_first and here != ",":
            raise NotAValueError(f"`{end}` is missing")
        self._skip()
        if is_first and self.text[self.at : self.at + 1] == end:
            self.at += 1
            return False
        return True

    def _quoted(self, quote: str) -> str:
        start = self.at + 1
        found = re.compile(rf"((?:[^\\{quote}]|\\.)*){quote}", re.DOTALL).match(self.text, start)
        if found is None:
            raise NotAValueError(f"a quote {quote} is not closed")
        self.at = found.end()
        # A backslash counts only before a quote, and before a backslash that is itself before one.
        body = re.sub(
            rf"(\\+)(?={quote})", lambda slashes: slashes.group()[: len(slashes.group()) // 2], found.group(1)
        )
        last = re.search(r"\\+$", body)
        return body if last is None else body[: last.start()] + "\\" * (len(last.group()) // 2)

    def _until(self, ends: str) -> str:
        """Return the text up to one of `ends`; an interpolation is whole."""
        start, depth = self.at, 0
        while self.at < len(self.text):
            here = self.text[self.at]
            if here == "\\":
                self.at += 2
                continue
            if self.text.startswith("${", self.at):
                depth += 1
                self.at += 1
            elif depth and here == "}":
                depth -= 1
            elif not depth and here in ends:
                break
            elif not depth and here in "[]{}'\"":
                raise NotAValueError(f"`{here}` is inside of a text without quotes")
            self.at += 1
        return self.text[start : self.at].strip()

    def _skip(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
