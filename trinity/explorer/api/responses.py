"""Experiences as answers of `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from trinity.common.experience import Experience
from trinity.explorer.api.calls import Asked, Drawn, RunningCall, Served
from trinity.explorer.api.errors import HTTPError, error_body
from trinity.explorer.api.requests import ChatRequest
from trinity.explorer.api.streaming import AnswerPart, drawn_of, message_of

__all__ = ["DONE", "CompletionForm", "error_body", "event", "usage_of", "with_json_arguments"]

DONE = "data: [DONE]\n\n"


class CompletionForm:
    """The answer to one request.

    Args:
        asked: what is asked.
        model: answers.
        path: of the route.
    """

    def __init__(self, asked: Asked, model: Served, *, path: str) -> None:
        self.asked, self._path = asked, path
        self.is_stream = bool(asked.stream)
        self._is_chat = isinstance(asked, ChatRequest)
        wants_logprobs = bool(asked.logprobs) if isinstance(asked, ChatRequest) else asked.logprobs is not None
        self._words: Mapping[int, str] | None = model.words() if wants_logprobs else None
        self._with_ids = bool(asked.return_token_ids)
        self._kind = "chat.completion" if self._is_chat else "text_completion"
        self._head: dict[str, Any] = {"created": int(time.time()), "model": model.model_name}

    def whole(self, experiences: Sequence[Experience], call_id: str) -> dict[str, Any]:
        """Return the answer as one object."""
        choices = [self._choice(number, exp) for number, exp in enumerate(experiences)]
        found = {**self._named(call_id), "object": self._kind, "choices": choices, "usage": usage_of(experiences)}
        if self._with_ids:
            found["prompt_token_ids"] = prompt_of(experiences[0])
        return found

    async def events(self, parts: AsyncIterator[AnswerPart], running: RunningCall) -> AsyncIterator[str]:
        """Yield the answer as events: the parts, the ends, what was used."""
        head = {**self._named(running.call_id), "object": "chat.completion.chunk" if self._is_chat else self._kind}
        begun: set[int] = set()
        experiences: list[Experience] = []
        async for part in parts:
            is_first = part.choice not in begun
            begun.add(part.choice)
            choice = self._part(part, is_first=is_first)
            if is_first and self._with_ids and part.final is not None:
                choice["prompt_token_ids"] = prompt_of(part.final)
            if is_first or part.content or part.reasoning or part.tokens or part.final is not None:
                yield event({**head, "choices": [choice]})
            if part.final is not None:
                experiences.append(part.final)
                end: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
                reason = _finish_reason(part.final, is_chat=self._is_chat)
                yield event({**head, "choices": [{"index": part.choice, **end, "finish_reason": reason}]})
        if self.asked.with_usage:
            yield event({**head, "choices": [], "usage": usage_of(experiences)})
        yield DONE

    def error(self, error: HTTPError) -> str:
        """Return an error as an event."""
        return event(error.body(self._path))

    def _named(self, call_id: str) -> dict[str, Any]:
        return {"id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{call_id}", **self._head}

    def _part(self, part: AnswerPart, *, is_first: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"index": part.choice, "finish_reason": None}
        if self._is_chat:
            delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
            if part.content or (is_first and not part.reasoning):
                delta["content"] = part.content
            if part.reasoning:
                delta["reasoning_content"] = part.reasoning
            calls = with_json_arguments(message_of(part.final)) if part.final is not None else []
            if calls:
                delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
            found["delta"] = delta
        else:
            found["text"] = part.content
        found["logprobs"] = self._logprobs(part.tokens) if self._words is not None else None
        if self._with_ids:
            found["token_ids"] = [drawn.token for drawn in part.tokens]
        return found

    def _choice(self, number: int, exp: Experience) -> dict[str, Any]:
        found: dict[str, Any] = {"index": number, "finish_reason": _finish_reason(exp, is_chat=self._is_chat)}
        found |= {"message": _message(exp)} if self._is_chat else {"text": exp.response_text or ""}
        tokens = drawn_of(number, exp)
        found["logprobs"] = self._logprobs(tokens) if self._words is not None else None
        if self._with_ids:
            found["token_ids"] = [drawn.token for drawn in tokens]
        return found

    def _logprobs(self, tokens: Sequence[Drawn]) -> dict[str, Any]:
        if not self._is_chat:
            tops = [{self._word(token): value for token, value in drawn.top} for drawn in tokens]
            return {
                "tokens": [self._word(drawn.token) for drawn in tokens],
                "token_logprobs": [drawn.logprob for drawn in tokens],
                "top_logprobs": tops if self.asked.logprobs else None,
                "text_offset": None,
            }
        rows = [
            self._row(drawn.token, drawn.logprob) | {"top_logprobs": [self._row(*each) for each in drawn.top]}
            for drawn in tokens
        ]
        return {"content": rows, "refusal": None}

    def _row(self, token: int, logprob: float) -> dict[str, Any]:
        word = self._word(token)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}

    def _word(self, token: int) -> str:
        assert self._words is not None, "log-probabilities are asked for"
        return self._words.get(token, f"<{token}>")


def usage_of(experiences: Sequence[Experience]) -> dict[str, int]:
    """Return the number of tokens.

    A prompt counts once however many samples it has.
    """
    prompts = {tuple(prompt_of(exp)) for exp in experiences}
    asked = sum(map(len, prompts))
    answered = sum(len(exp.tokens) - exp.prompt_length for exp in experiences)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def prompt_of(exp: Experience) -> list[int]:
    """Return the tokens of a prompt."""
    return [int(token) for token in exp.tokens[: exp.prompt_length]]


def with_json_arguments(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tool calls of a message, their arguments as JSON."""
    return [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]


def _message(exp: Experience) -> dict[str, Any]:
    if exp.info.get("message") is None:
        return message_of(exp)
    message = message_of(exp)
    calls = with_json_arguments(message)
    return {**message, "content": message["content"] or None} | ({"tool_calls": calls} if calls else {})


def _finish_reason(exp: Experience, *, is_chat: bool) -> str:
    reason = str(exp.info.get("finish_reason", "stop"))
    has_calls = is_chat and bool(message_of(exp).get("tool_calls"))
    return "tool_calls" if reason == "stop" and has_calls else reason


def event(data: Mapping[str, Any]) -> str:
    """Return an event of a stream."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
