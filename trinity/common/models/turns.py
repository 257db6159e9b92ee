"""The responses of a rollout, from which its conversations continue.

A further turn contains the earlier responses as text. Tokenised again they need not be the tokens that were sampled. So
a conversation is found by its messages, and its next prompt begins with the tokens of the call that gave its last
response.

    messages[:2] = question, reply  --found-->  prompt and response as sampled
    messages[2:]                     --rendered--> the tokens that follow
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity.common.experience import Experience
from trinity.common.models.said import Said
from trinity.utils.log import get_logger

logger = get_logger("explorer")

MAX_ANSWERS = 4096
"""Answers that are kept; those that were used last."""


@dataclass(frozen=True)
class Conversation:
    """A conversation that gets an answer.

    Attributes:
        said: its longest beginning that was a call before; None if there is none.
    """

    said: Said | None
    _turns: Turns
    _key: bytes

    def add(self, experience: Experience) -> None:
        """Remember an answer.

        It is found by its text, and by the message as which it was parsed, with or without the thought.
        """
        if experience.truncate_status == "prompt_truncated":
            return
        messages: list[Mapping[str, Any]] = [{"role": "assistant", "content": experience.response_text}]
        parsed = experience.info.get("message")
        if parsed is not None:
            messages += [parsed, {name: parsed[name] for name in parsed if name != "reasoning_content"}]
        for message in messages:
            self._turns.remember(_extended(self._key, message), experience)


class Turns:
    """The answers of one rollout, found by the messages before them.

    Attributes:
        foreign: conversations with a later response than those found here. It was not sampled in this rollout, or is
            no longer known, or came back in other words; its text is tokenised, as part of the prompt.
    """

    def __init__(self) -> None:
        self.foreign = 0
        self._answers: OrderedDict[bytes, Experience] = OrderedDict()

    def conversation(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> Conversation:
        """Return a conversation, with the tokens of its beginning."""
        key = _digest(b"", tools)
        found: tuple[int, bytes] | None = None
        for count, message in enumerate(messages, start=1):
            key = _extended(key, message)
            if key in self._answers:
                found = count, key
        known = 1 if found is None else found[0]  # a conversation may begin with the assistant, and not with an answer
        if any(message.get("role") == "assistant" for message in messages[known:]):
            self.foreign += 1
            _tell_of_foreign()
        if found is None:
            return Conversation(None, self, key)
        count, place = found
        self._answers.move_to_end(place)
        experience = self._answers[place]
        said = Said(count, [int(token) for token in experience.tokens], experience.prompt_length)
        return Conversation(said, self, key)

    def sampled(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> dict[int, Experience | None]:
        """Return the call that gave each response, by its place.

        None: the response was not sampled in this conversation.
        """
        key = _digest(b"", tools)
        calls: dict[int, Experience | None] = {}
        for place, message in enumerate(messages):
            key = _extended(key, message)
            if place and message.get("role") == "assistant":
                calls[place] = self._answers.get(key)
        return calls

    def remember(self, key: bytes, experience: Experience) -> None:
        """Keep an answer under the key of its conversation."""
        self._answers[key] = experience
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
            if not self._is_full:
                logger.warning(
                    "a rollout has more than %d responses; conversations that continue from older ones are tokenised "
                    "again",
                    MAX_ANSWERS,
                )
            self._is_full = True

    _is_full = False


@functools.cache
def _tell_of_foreign() -> None:
    logger.info(
        "a conversation has a response that was not sampled in it, or came back in other words; such a response is "
        "tokenised as part of the prompt and not trained, and counted (rollout/foreign_turn_count)"
    )


def _extended(key: bytes, message: Mapping[str, Any]) -> bytes:
    """Return the key of a conversation with a further message."""
    kept = {name: value for name, value in message.items() if value not in (None, "", [], {})}
    if "tool_calls" in kept:
        kept["tool_calls"] = [_tool_call(call) for call in kept["tool_calls"]]
    return _digest(key, kept)


def _tool_call(call: Any) -> Any:
    """Return a tool call whose arguments are a mapping, as in templates."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except ValueError:
        return call


def _digest(key: bytes, value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(key + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
