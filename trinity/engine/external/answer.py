"""Strict parsing of an OpenAI-compatible server's answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trinity.common.errors import EngineError


@dataclass(frozen=True)
class Choice:
    """One response of a server.

    Attributes:
        text: text of the response; empty if it only calls tools.
        is_cut: it ended at the token limit.
        token_ids: tokens of the response, if the server returns them.
        logprobs: log-probabilities of these tokens (nats), if the server returns them.
        tool_calls: as the server wrote them.
    """

    text: str
    is_cut: bool
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    tool_calls: list[Any] | None = None


@dataclass(frozen=True)
class EndpointAnswer:
    """All choices of one request, and its prompt tokens if returned."""

    choices: list[Choice]
    prompt_ids: list[int] | None = None


def read_answer(document: Any, *, where: str) -> EndpointAnswer:
    """Parse the answer to `/chat/completions` or `/completions`.

    Args:
        document: the JSON document.
        where: key of the section, for the message.

    Raises:
        EngineError: a part is missing or of another type; the message names it (E5733).
    """
    try:
        choices = sorted(document["choices"], key=lambda choice: choice.get("index", 0))
        read = [_choice(choice) for choice in choices]
        prompt = document.get("prompt_token_ids") or (choices[0].get("prompt_token_ids") if choices else None)
        prompt_ids = [int(token) for token in prompt] if prompt else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"{where}: the server's answer is not in OpenAI's form: {type(error).__name__}: {error}", code="E5733"
        ) from error
    if not read:
        raise EngineError(f"{where}: the server's answer holds no choice", code="E5733")
    return EndpointAnswer(read, prompt_ids)


def _choice(choice: dict[str, Any]) -> Choice:
    message = choice.get("message")
    text = choice["text"] if message is None else message.get("content")
    calls = None if message is None else message.get("tool_calls")
    if text is None and not calls:
        raise ValueError("a choice has neither text nor tool calls")
    ids = choice.get("token_ids")
    return Choice(
        text=str(text or ""),
        is_cut=choice.get("finish_reason") == "length",
        token_ids=None if ids is None else [int(token) for token in ids],
        logprobs=_logprobs(choice.get("logprobs")),
        tool_calls=calls or None,
    )


def _logprobs(part: dict[str, Any] | None) -> list[float] | None:
    if not part:
        return None
    content = part.get("content")
    values = part.get("token_logprobs") if content is None else [token["logprob"] for token in content]
    if not values:
        return None
    numbers = [float(value) for value in values]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a log-probability is not a finite number")
    return numbers
