"""Experiences as answers of the OpenAI interface."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity.common.experience import Experience

DONE = "data: [DONE]\n\n"


class Answer:
    """The answer to one request.

    Args:
        experiences: the samples, `n` of each prompt.
        model: name of the model.
        is_chat: of `/v1/chat/completions`.
        words: text of each token id, where log-probabilities are asked for.
        with_ids: token ids are asked for.
    """

    def __init__(
        self,
        experiences: Sequence[Experience],
        *,
        model: str,
        is_chat: bool,
        words: Mapping[int, str] | None = None,
        with_ids: bool = False,
    ) -> None:
        self.experiences = experiences
        self._is_chat, self._words, self._with_ids = is_chat, words, with_ids
        kind = "chat.completion" if is_chat else "text_completion"
        prefix = "chatcmpl" if is_chat else "cmpl"
        # An answer that is recorded has its id already.
        number = experiences[0].eid.suffix or uuid.uuid4().hex
        self._head = {"id": f"{prefix}-{number}", "created": int(time.time()), "model": model}
        self._kind = kind

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        choices = [self._choice(number, exp) for number, exp in enumerate(self.experiences)]
        found = {**self._head, "object": self._kind, "choices": choices, "usage": self.usage()}
        if self._with_ids:
            found["prompt_token_ids"] = _prompt(self.experiences[0])
        return found

    def stream(self, *, with_usage: bool) -> Iterator[str]:
        """Yield the answer as events.

        They are the text of each choice and its end, and at last what was used.
        """
        kind = "chat.completion.chunk" if self._is_chat else self._kind
        for number, exp in enumerate(self.experiences):
            choice = self._choice(number, exp)
            reason = choice.pop("finish_reason")
            if self._is_chat:
                message = choice.pop("message")
                if "tool_calls" in message:
                    message["tool_calls"] = [{"index": place, **c} for place, c in enumerate(message["tool_calls"])]
                choice["delta"] = message
                end: dict[str, Any] = {"index": number, "delta": {}, "finish_reason": reason}
            else:
                end = {"index": number, "text": "", "finish_reason": reason}
            yield _event({**self._head, "object": kind, "choices": [{**choice, "finish_reason": None}]})
            yield _event({**self._head, "object": kind, "choices": [end]})
        if with_usage:
            yield _event({**self._head, "object": kind, "choices": [], "usage": self.usage()})
        yield DONE

    def usage(self) -> dict[str, int]:
        """Return the number of tokens.

        A prompt counts once however many samples it has.
        """
        prompts = {tuple(_prompt(exp)) for exp in self.experiences}
        asked = sum(map(len, prompts))
        answered = sum(len(exp.tokens) - exp.prompt_length for exp in self.experiences)
        return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}

    def _choice(self, number: int, exp: Experience) -> dict[str, Any]:
        text = exp.response_text or ""
        found: dict[str, Any] = {"index": number, "finish_reason": exp.info.get("finish_reason", "stop")}
        found |= {"message": _message(exp)} if self._is_chat else {"text": text}
        if self._is_chat and found["finish_reason"] == "stop" and found["message"].get("tool_calls"):
            found["finish_reason"] = "tool_calls"
        found["logprobs"] = self._logprobs(exp) if self._words is not None else None
        if self._with_ids:
            found["token_ids"] = _response(exp)
        return found

    def _logprobs(self, exp: Experience) -> dict[str, Any]:
        assert self._words is not None and exp.logprobs is not None, "a sample has log-probabilities"
        words = [self._words.get(token, f"<{token}>") for token in _response(exp)]
        values = exp.logprobs.tolist()
        if not self._is_chat:
            return {"tokens": words, "token_logprobs": values, "top_logprobs": None, "text_offset": None}
        rows = [
            {"token": word, "logprob": value, "bytes": list(word.encode()), "top_logprobs": []}
            for word, value in zip(words, values, strict=True)
        ]
        return {"content": rows, "refusal": None}


def _message(exp: Experience) -> dict[str, Any]:
    """Return an answer as a message whose calls have JSON arguments."""
    parsed = exp.info.get("message")
    if parsed is None:
        return {"role": "assistant", "content": exp.response_text or ""}
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in parsed.get("tool_calls", ())
    ]
    return {**parsed, "content": parsed["content"] or None} | ({"tool_calls": calls} if calls else {})


def _prompt(exp: Experience) -> list[int]:
    return [int(token) for token in exp.tokens[: exp.prompt_length]]


def _response(exp: Experience) -> list[int]:
    return [int(token) for token in exp.tokens[exp.prompt_length :]]


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def error_body(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error as the interface has it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
