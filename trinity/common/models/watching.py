"""What the caller of a model sees of a call while it is made.

A call passes through wrappers and routers to an engine. Who watches it is a variable of its context, so that nothing
between has to know; engines in other processes do not see it, and are not watched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trinity.common.experience import Experience
    from trinity.common.models.answer_parsers import AnswerParser

T = TypeVar("T")
Top = tuple[tuple[int, float], ...]
"""The most probable tokens with their log-probabilities, the first one first."""
Listener = Callable[[int, int, float, Top], None]
"""Takes sample, token, log-probability and alternatives, in the engine's thread."""


@dataclass(frozen=True)
class Begun:
    """A prompt whose samples begin.

    Attributes:
        prompt: its number in the call.
        tokens: its tokens.
        text: its text.
        tokenizer: decodes its samples.
        parser: reads its samples as messages; None: they are text.
    """

    prompt: int
    tokens: Sequence[int]
    text: str
    tokenizer: PreTrainedTokenizerBase
    parser: AnswerParser | None


class Watcher(Protocol):
    """Watches one call.

    Its methods are called from any thread, and must not block.
    """

    @property
    def call_id(self) -> str:
        """Name of the call for its caller."""

    def begin(self, begun: Begun) -> None:
        """Take note of a prompt; a second time if an engine was lost."""

    def token(self, prompt: int, sample: int, token: int, logprob: float, top: Top) -> None:
        """Take a token of a response to a prompt, in the order of sampling."""

    def accept(self, experiences: Sequence[Experience]) -> None:
        """Raise if the call has failed all the same: then nothing is recorded."""


_watching: ContextVar[tuple[Watcher, int] | None] = ContextVar("watching", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let `watcher` see the call that is made inside."""
    token = _watching.set((watcher, 0))
    try:
        yield
    finally:
        _watching.reset(token)


async def of_prompt(number: int, call: Awaitable[T]) -> T:
    """Make the call for one of several prompts, in a task of its own."""
    seen = _watching.get()
    if seen is not None:
        _watching.set((seen[0], number))
    return await call


def call_id() -> str | None:
    """Return the name of the call for its caller; None: it has none."""
    seen = _watching.get()
    return None if seen is None else seen[0].call_id


def accept(experiences: Sequence[Experience]) -> None:
    """Let the watcher, if any, refuse the experiences of a call."""
    seen = _watching.get()
    if seen is not None:
        seen[0].accept(experiences)


def note_prompt(
    tokens: Sequence[int], text: str, *, tokenizer: PreTrainedTokenizerBase, parser: AnswerParser | None
) -> None:
    """Tell the watcher, if any, that the responses to a prompt begin."""
    seen = _watching.get()
    if seen is not None:
        seen[0].begin(Begun(seen[1], tokens, text, tokenizer, parser))


def listener() -> Listener | None:
    """Return what takes the tokens of this prompt; None: nobody does."""
    seen = _watching.get()
    return None if seen is None else partial(seen[0].token, seen[1])
