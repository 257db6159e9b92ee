"""Answers in parts, as their tokens are sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trinity.common.experience import Experience
from trinity.common.models.answer_stream import MessageStream, NewText, StreamText
from trinity.common.models.vocabulary import special_ids
from trinity.common.models.watching import Begun
from trinity.explorer.api.calls import Asked, Drawn, RunningCall
from trinity.explorer.api.errors import HTTPError
from trinity.explorer.api.requests import ChatRequest
from trinity.utils.log import get_logger

logger = get_logger("explorer")


@dataclass(frozen=True)
class AnswerPart:
    """A part of a choice.

    Attributes:
        choice: its number.
        content: further text.
        reasoning: further thought.
        tokens: those since the last part, with their log-probabilities.
        final: the whole choice, with its last part; None before.
    """

    choice: int
    content: str = ""
    reasoning: str = ""
    tokens: Sequence[Drawn] = ()
    final: Experience | None = None


@dataclass
class _Choice:
    number: int
    text: StreamText
    message: MessageStream | None
    special: frozenset[int]
    may_stop: bool
    said: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    waiting: list[Drawn] = field(default_factory=list)
    num_sent: int = 0
    was_special: bool = False
    is_held: bool = False

    def add(self, drawn: Drawn) -> NewText:
        self.waiting.append(drawn)
        text = self.text.add(drawn.token)
        if self.message is None:
            return NewText(content=text)
        is_special = drawn.token in self.special
        # Stop strings are found in the text without special tokens; the rest is therefore read as a whole.
        self.is_held = self.is_held or (self.may_stop and is_special)
        if self.is_held:
            return NewText()
        # The text comes with the token after it.
        was_special, self.was_special = self.was_special, is_special
        return self.message.add(text, is_special=was_special)

    def taken(self) -> list[Drawn]:
        tokens, self.waiting = self.waiting, []
        self.num_sent += len(tokens)
        return tokens


async def parts(running: RunningCall) -> AsyncIterator[AnswerPart]:
    """Yield the parts of all choices; the last ones have the whole.

    An answer whose tool calls are checked, and one of an engine that is not watched, comes as a whole.

    Raises:
        HTTPError: the call failed, its client has disconnected, or the whole is not what was begun (500).
    """
    asked = running.asked
    choices: dict[int, _Choice] = {}
    is_whole = isinstance(asked, ChatRequest) and asked.must_call
    while not is_whole:
        drawn = await running.arrived()
        if not drawn:
            break
        new: dict[int, NewText] = {}
        for one in drawn:
            choice = choices.get(one.choice) or _started(running, one.choice)
            choices[one.choice] = choice
            said, before = choice.add(one), new.get(one.choice, NewText())
            new[one.choice] = NewText(before.reasoning + said.reasoning, before.content + said.content)
        for number, said in new.items():
            if said.reasoning or said.content:
                choices[number].thought.append(said.reasoning)
                choices[number].said.append(said.content)
                yield AnswerPart(number, said.content, said.reasoning, choices[number].taken())
    for number, experience in enumerate(await running.result()):
        yield _last(number, experience, choices.get(number), is_chat=isinstance(asked, ChatRequest))


def _started(running: RunningCall, number: int) -> _Choice:
    asked = running.asked
    begun = running.begun(number // (asked.n or 1))
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    parser = begun.parser if isinstance(asked, ChatRequest) else None
    held = max((len(stop) - 1 for stop in stops), default=None if parser is None else 0)
    text = StreamText(begun.tokenizer, skips_special=parser is None, held=held)
    return _Choice(number, text, _message_of(asked, begun), special_ids(begun.tokenizer), may_stop=bool(stops))


def _message_of(asked: Asked, begun: Begun) -> MessageStream | None:
    if not isinstance(asked, ChatRequest) or begun.parser is None:
        return None
    has_tools = bool(asked.tools) and asked.tool_choice != "none"
    return MessageStream(begun.parser, prompt=begun.text, has_tools=has_tools)


def _last(number: int, experience: Experience, choice: _Choice | None, *, is_chat: bool) -> AnswerPart:
    """Return the part with the rest of a choice.

    Raises:
        HTTPError: the whole does not begin with the parts (500).
    """
    message = message_of(experience) if is_chat else {"content": experience.response_text or ""}
    said = "".join(choice.said) if choice else ""
    thought = "".join(choice.thought) if choice else ""
    content, reasoning = message["content"] or "", message.get("reasoning_content") or ""
    if not reasoning.startswith(thought):  # of several thoughts the last one counts
        logger.warning("a response has several parts of reasoning; its stream had only the first")
        reasoning = thought
    if not content.startswith(said):
        logger.error("the streamed text is not the beginning of its response: %r, %r", said[-200:], content[:200])
        raise HTTPError(500, "the stream does not begin the response; ask without `stream`", kind="server_error",
                        code="stream_mismatch")  # fmt: skip
    start = choice.num_sent if choice else 0
    tokens = drawn_of(number, experience)[start:]
    return AnswerPart(number, content[len(said) :], reasoning[len(thought) :], tokens, experience)


def drawn_of(choice: int, experience: Experience) -> list[Drawn]:
    """Return the tokens of a whole answer."""
    response = experience.tokens[experience.prompt_length :].tolist()
    logprobs = [0.0] * len(response) if experience.logprobs is None else experience.logprobs.tolist()
    tops = experience.info.get("top_logprobs") or [()] * len(response)
    found = zip(response, logprobs, tops, strict=True)
    return [Drawn(choice, token, logprob, tuple((t, p) for t, p in top)) for token, logprob, top in found]


def message_of(experience: Experience) -> dict[str, Any]:
    """Return an answer as a message; arguments of its calls are mappings."""
    parsed = experience.info.get("message")
    return dict(parsed) if parsed is not None else {"role": "assistant", "content": experience.response_text or ""}
