"""What is certain of an answer while it is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.common.models.chat_template import decode_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trinity.common.models.answer_parsers import AnswerParser

_INCOMPLETE = "\ufffd"


@dataclass(frozen=True)
class NewText:
    """Parts of a message that are new: thought and text."""

    reasoning: str = ""
    content: str = ""


class StreamText:
    """The text of tokens, never with a part of a character.

    Args:
        tokenizer: decodes.
        skips_special: special tokens have no text.
        held: characters before the text of the last token that are held back, since a stop string may still remove
            them. None: nothing is held back, not even the text of the last token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, skips_special: bool, held: int | None) -> None:
        self._tokenizer, self._skips, self._held = tokenizer, skips_special, held
        self._window: list[int] = []
        self._known = 0  # tokens of the window whose text was taken
        self._pending = ""

    def add(self, token: int) -> str:
        """Return the text that is certain now."""
        if self._held is None:
            return self._decoded(token)
        # The tokens before this one have completed no stop string. One that this token completes begins at most `held`
        # characters before its text.
        most = max(0, len(self._pending) - self._held)
        certain, self._pending = self._pending[:most], self._pending[most:]
        self._pending += self._decoded(token)
        return certain

    def _decoded(self, token: int) -> str:
        self._window.append(token)
        before = self._text(self._window[: self._known])
        after = self._text(self._window)
        if after.endswith(_INCOMPLETE) or not after.startswith(before):
            return ""
        added = after[len(before) :]
        # What a tokenizer does at the begin of a text must not happen here: a few tokens stay before the new ones.
        self._window, self._known = self._window[self._known :], len(self._window) - self._known
        return added

    def _text(self, tokens: Sequence[int]) -> str:
        return decode_tokens(self._tokenizer, tokens, skip_special=self._skips) if tokens else ""


class MessageStream:
    """An answer's text as a message, as `AnswerParser` reads the whole.

    Nothing is given that the rest of the answer could make something else: a call of a tool, and what follows it, is
    read at the end.

    Args:
        parser: reads the whole.
        prompt: the prompt, which may have begun a thought, or have ended one.
        has_tools: the answer may have calls.
    """

    def __init__(self, parser: AnswerParser, *, prompt: str, has_tools: bool) -> None:
        self._marks, self._thought = parser.marks(has_tools=has_tools), parser.thought
        self._text = ""
        self._has_said = self._has_thought = False
        end = prompt.rstrip()
        if self._thought is None or end.endswith(self._thought[1]):
            self._state = "content"
        else:
            self._state = "thought" if end.endswith(self._thought[0]) else "start"

    def add(self, text: str, *, is_special: bool = False) -> NewText:
        """Return what is new and certain after a further part of the text.

        Args:
            text: the part.
            is_special: it has special tokens, which stand in no text that is not parsed.
        """
        if is_special and self._state != "thought":
            self._state = "held"
        self._text += text
        reasoning = content = ""
        if self._state == "start":
            self._begin()
        if self._state == "thought":
            reasoning = self._think()
        if self._state == "content":
            content = self._say()
        return NewText(reasoning, content)

    def _begin(self) -> None:
        assert self._thought is not None, "there are thoughts"
        opening, text = self._thought[0], self._text.lstrip()
        if text.startswith(opening):
            self._text, self._state = text[len(opening) :], "thought"
        elif not opening.startswith(text):
            self._state = "held"  # a thought may end without having begun

    def _think(self) -> str:
        assert self._thought is not None, "there are thoughts"
        thought, end, rest = self._text.partition(self._thought[1])
        if end:
            self._text, self._state = rest, "content"
            said = self._led(thought.rstrip())
            if not self._has_said:
                self._state = "held"  # an empty thought is text, with what follows it
            self._has_thought, self._has_said = True, False
            return said
        thought = thought[: len(thought) - _overlap(thought, self._thought[1])].rstrip()
        self._text = self._text[len(thought) :]
        return self._led(thought)

    def _say(self) -> str:
        if not self._has_said and not self._has_thought and self._text[:1].isspace():
            self._state = "held"  # blanks before a text count, but not before one with a call
            return ""
        found = [self._text.index(mark) for mark in self._marks if mark in self._text]
        if found:
            said, self._state = self._text[: min(found)].rstrip(), "held"
        else:
            longest = max((_overlap(self._text, mark) for mark in self._marks), default=0)
            said = self._text[: len(self._text) - longest].rstrip()
        self._text = self._text[len(said) :]
        return self._led(said)

    def _led(self, said: str) -> str:
        """Return a part; blanks before the first one do not count."""
        if not self._has_said:
            said = said.lstrip()
        self._has_said = self._has_said or bool(said)
        return said


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may begin a mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)
