"""Requests of the OpenAI interface, and what an engine is asked for them.

What is not known, or cannot be done here, is refused by name: nothing is ignored but what changes no token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

# Fields of the interface that have no effect on the tokens of a model here, so that any value is taken.
WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "request_id",
})  # fmt: skip
# Fields that could change them, with the values that do not.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": ({}, None),
    "top_logprobs": (0, None),
    "response_format": ({"type": "text"}, None),
    "echo": (False, None),
    "best_of": (1, None),
    "suffix": (None, ""),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "stream_tokens": (None, False),
}


class BadRequestError(ValueError):
    """A request that cannot be answered as it is.

    Args:
        message: what is wrong, and the way out.
        param: the field.
        code: `invalid_request_error` or a more exact word of the interface.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class StreamOptions(BaseModel):
    """What a stream ends with."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class _Request(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    model: str | None = None
    n: int | None = Field(None, ge=1, le=1024)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    stop: str | list[str] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    def arguments(self, max_model_len: int) -> dict[str, Any]:
        """Return the arguments of the engine's call.

        Args:
            max_model_len: most tokens of prompt and answer; without `max_tokens` an answer may fill it.
        """
        names = ("n", "temperature", "top_p", "top_k", "min_tokens", "seed", "ignore_eos")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.stop:
            found["stop"] = self.stop
        return found | {"max_tokens": self.max_tokens or max_model_len}


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None

    @field_validator("messages")
    @classmethod
    def _messages(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_message(number, message) for number, message in enumerate(messages)]

    def arguments(self, max_model_len: int) -> dict[str, Any]:
        """Return the arguments of the engine's call; see `_Request`."""
        found = super().arguments(max_model_len)
        if self.max_completion_tokens is not None:
            found["max_tokens"] = self.max_completion_tokens
        if self.tools and self.tool_choice != "none":
            found["tools"] = self.tools
        return found


class CompletionRequest(_Request):
    """`POST /v1/completions`; a prompt is a text or token ids."""

    prompt: str | list[int] | list[str]
    logprobs: int | None = Field(None, ge=0, le=1)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[int(token) for token in self.prompt]]
        return [str(text) for text in self.prompt]


def read(kind: type[ChatRequest] | type[CompletionRequest], body: bytes) -> Any:
    """Return a request.

    Raises:
        BadRequestError: no JSON, an unknown field, or a value that cannot be taken.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body must be JSON: {error}") from error
    if not isinstance(given, dict):
        raise BadRequestError(f"the body must be an object, got {type(given).__name__}")
    for name, values in NEUTRAL.items():
        if name in given and given[name] not in values:
            raise BadRequestError(
                f"`{name}` is not available here, got {json.dumps(given[name])[:200]}; leave it out", param=name
            )
    kept = {name: value for name, value in given.items() if name not in WITHOUT_EFFECT and name not in NEUTRAL}
    try:
        return kind.model_validate(kept)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(map(str, first["loc"]))
        said = "is not known here" if first["type"] == "extra_forbidden" else first["msg"]
        raise BadRequestError(f"`{param}`: {said}", param=param) from error


def _message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates read it.

    Its content is text, and the arguments of its tool calls are mappings.
    """
    found = dict(message)
    if not isinstance(found.get("role"), str):
        raise ValueError(f"message {number} needs a role, such as user")
    content = found.get("content")
    if isinstance(content, list):
        found["content"] = "".join(_text(number, part) for part in content)
    elif content is None:
        found["content"] = ""
    elif not isinstance(content, str):
        raise ValueError(f"content of message {number} must be text or a list of parts, got {type(content).__name__}")
    if found.get("tool_calls"):
        found["tool_calls"] = [_tool_call(number, call) for call in found["tool_calls"]]
    return found


def _text(number: int, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") not in ("text", "input_text"):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise ValueError(f"message {number} has a part of type {kind!r}; parts of type 'text' are read here")
    return str(part.get("text", ""))


def _tool_call(number: int, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"message {number} has a tool call without the name of its function")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ValueError(f"message {number}: arguments of a tool call must be JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments}}
