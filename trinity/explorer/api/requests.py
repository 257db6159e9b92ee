"""Requests of the OpenAI interface, and what an engine is asked for them.

What is not known, or cannot be done here, is refused by name: nothing is ignored but what changes no token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from trinity.common.models.generate_params import MAX_TOP_LOGPROBS
from trinity.explorer.api.descriptions import CHAT_MESSAGES, TOOLS
from trinity.explorer.api.errors import BadRequestError
from trinity.explorer.api.image_parts import MAX_IMAGES, of_url

__all__ = ["BadRequestError", "ChatRequest", "CompletionRequest", "NamedTool", "StreamOptions", "read", "refuse_others"]

# Fields of the interface that have no effect on the tokens of a model here, so that any value is taken.
WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "request_id",
})  # fmt: skip
# Fields that could change them, with the values that do not.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": ({}, None),
    "response_format": ({"type": "text"}, None),
    "echo": (False, None),
    "best_of": (1, None),
    "suffix": (None, ""),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "stream_tokens": (None, False),
}
MAX_CHOICES = 1024
MAX_INT = 2**31 - 1
MIN_TEMPERATURE = 1e-6
"""Smallest temperature but 0: at smaller ones logits would leave the range of their type."""
Integer = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]


def _not_near_zero(value: float) -> float:
    if 0 < value < MIN_TEMPERATURE:
        raise ValueError(f"must be 0 or at least {MIN_TEMPERATURE}, got {value}")
    return value


Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_not_near_zero)]
TopP = Annotated[float, Field(ge=MIN_TEMPERATURE, le=1)]
TopK = Annotated[int, Field(ge=-1, le=MAX_INT)]

M = TypeVar("M", bound=BaseModel)


class StreamOptions(BaseModel):
    """What a stream ends with."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class NamedFunction(BaseModel):
    """The name of a function."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1)


class NamedTool(BaseModel):
    """A tool that must be called."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    function: NamedFunction


class _Request(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    model: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    min_tokens: int | None = Field(None, ge=0, le=MAX_INT)
    stop: str | Annotated[list[StopText], Field(max_length=64)] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and self.stream_options.include_usage

    def arguments(self, max_model_len: int) -> dict[str, Any]:
        """Return the arguments of the engine's call.

        The lengths of section `model` are those of `model.chat` and `model.generate`: here `max_model_len` alone holds.

        Args:
            max_model_len: most tokens of prompt and response; without `max_tokens` a response may fill it.
        """
        names = ("n", "temperature", "top_p", "top_k", "seed", "ignore_eos")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.stop:
            found["stop"] = self.stop
        lengths = {"min_tokens": self.min_tokens or 0, "max_tokens": self.max_tokens or max_model_len}
        return found | lengths | {"enable_prompt_truncation": False}


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], CHAT_MESSAGES] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[dict[str, Any]], TOOLS] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @field_validator("messages")
    @classmethod
    def _messages(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = [_message(number, message) for number, message in enumerate(messages)]
        contents = [message["content"] for message in found if isinstance(message["content"], list)]
        count = sum(part["type"] == "image_url" for content in contents for part in content)
        if count > MAX_IMAGES:
            raise ValueError(f"a request has at most {MAX_IMAGES} images, got {count}")
        return found

    @field_validator("top_logprobs")
    @classmethod
    def _top(cls, count: int | None, info: ValidationInfo) -> int | None:
        if count and not info.data.get("logprobs"):
            raise ValueError("needs logprobs: true")
        return count

    @field_validator("tools")
    @classmethod
    def _tools(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for number, tool in enumerate(tools or ()):
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict):
                raise ValueError(f"tool {number} must be a function: {{'type': 'function', 'function': {{...}}}}")
            if not isinstance(function.get("name"), str) or not isinstance(function.get("parameters", {}), dict):
                raise ValueError(f"the function of tool {number} needs a name, and its parameters are an object")
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _choice(cls, choice: str | NamedTool | None, info: ValidationInfo) -> str | NamedTool | None:
        names = {tool["function"]["name"] for tool in info.data.get("tools") or ()}
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError(f"names {choice.function.name!r}, which is not one of `tools`")
        if choice == "required" and not names:
            raise ValueError("'required' needs `tools`")
        return choice

    @property
    def must_call(self) -> bool:
        """Whether the answer may turn out not to be what is asked for."""
        wants_call = self.tool_choice not in (None, "auto", "none")
        return wants_call or (self.parallel_tool_calls is False and bool(self.tools) and self.tool_choice != "none")

    def arguments(self, max_model_len: int) -> dict[str, Any]:
        """Return the arguments of the engine's call; see `_Request`."""
        found = super().arguments(max_model_len)
        if self.max_completion_tokens is not None:
            found["max_tokens"] = self.max_completion_tokens
        if self.tools and self.tool_choice != "none":
            found["tools"] = self.tools
        if self.top_logprobs:
            found["top_logprobs"] = self.top_logprobs
        return found

    def check_answer(self, number: int, message: Mapping[str, Any]) -> None:
        """Refuse an answer that has not the tool calls that were asked for.

        The model samples freely, so that what is trained is what it says.

        Args:
            number: of the choice.
            message: the answer, as it was parsed; {} if it is only text.

        Raises:
            BadRequestError: no call, or not of the tool that was named, or more than one (status 422).
        """
        if not self.must_call:
            return
        called = [call["function"]["name"] for call in message.get("tool_calls", ())]
        if self.tool_choice == "required" and not called:
            said = "calls no tool"
        elif isinstance(self.tool_choice, NamedTool) and set(called) != {self.tool_choice.function.name}:
            said = f"calls {', '.join(called) or 'no tool'}, not {self.tool_choice.function.name} alone"
        elif self.parallel_tool_calls is False and len(called) > 1:
            said = f"has {len(called)} tool calls"
            raise BadRequestError(f"choice {number} {said}; ask again", param="parallel_tool_calls",
                                  code="parallel_tool_calls_not_met", status=422)  # fmt: skip
        else:
            return
        raise BadRequestError(
            f"choice {number} {said}; nothing was recorded: ask again, or with tool_choice 'auto' (calls are read "
            "where explorer.rollout_model.tool_call_parser says how the model writes them)",
            param="tool_choice", code="tool_choice_not_met", status=422,
        )  # fmt: skip


class CompletionRequest(_Request):
    """`POST /v1/completions`; a prompt is a text or token ids."""

    prompt: str | list[Integer] | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    def arguments(self, max_model_len: int) -> dict[str, Any]:
        """Return the arguments of the engine's call; see `_Request`."""
        return super().arguments(max_model_len) | ({"top_logprobs": self.logprobs} if self.logprobs else {})

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt or isinstance(self.prompt[0], int):
            return [[int(token) for token in self.prompt]]
        return [str(text) for text in self.prompt]

    @field_validator("prompt")
    @classmethod
    def _count(cls, prompt: str | list[int] | list[str], info: ValidationInfo) -> str | list[int] | list[str]:
        is_one = isinstance(prompt, str) or not prompt or isinstance(prompt[0], int)
        count = (1 if is_one else len(prompt)) * (info.data.get("n") or 1)
        if count > MAX_CHOICES:
            raise ValueError(f"prompts times n must be at most {MAX_CHOICES} choices, got {count}")
        return prompt


def refuse_others(given: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields whose values ask for something not available here.

    Raises:
        BadRequestError: a field of `neutral` with another value.
    """
    for name, values in neutral.items():
        if name in given and given[name] not in values:
            raise BadRequestError(
                f"`{name}` is not available here, got {json.dumps(given[name])[:200]}; leave it out", param=name
            )


def read(
    kind: type[M],
    body: bytes,
    *,
    without_effect: frozenset[str] = WITHOUT_EFFECT,
    neutral: Mapping[str, tuple[Any, ...]] = NEUTRAL,
) -> M:
    """Return a request.

    Args:
        kind: of the request.
        body: as it was sent.
        without_effect: fields that may have any value.
        neutral: fields with the values that they may have.

    Raises:
        BadRequestError: no JSON, an unknown field, or a value that cannot be taken.
    """
    given = _object(body)
    refuse_others(given, neutral)
    return checked(kind, {name: v for name, v in given.items() if name not in without_effect and name not in neutral})


def checked(kind: type[M], given: Mapping[str, Any]) -> M:
    """Return a request of these fields.

    Raises:
        BadRequestError: an unknown field, or a value that cannot be taken.
    """
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        loc = [str(part) for part in first["loc"]]
        # What follows the first name, such as the types that a field may have, does not help the caller.
        param = ".".join(loc[:1] if first["type"] != "extra_forbidden" else loc)
        said = "is not known here" if first["type"] == "extra_forbidden" else first["msg"]
        raise BadRequestError(f"`{param}`: {said}", param=param) from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body)
        if b"\\u" in body:
            json.dumps(given, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body must be JSON: {error}") from error
    if not isinstance(given, dict):
        raise BadRequestError(f"the body must be an object, got {type(given).__name__}")
    return given


def _message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates read it.

    Its content is text, or parts if it has images, and the arguments of its tool calls are mappings.
    """
    found = dict(message)
    if not isinstance(found.get("role"), str):
        raise ValueError(f"message {number} needs a role, such as user")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if not isinstance(found.get(name), str | None):
            raise ValueError(f"{name} of message {number} must be text")
    content = found.get("content")
    if isinstance(content, list):
        found["content"] = _parts(number, found["role"], content)
    elif content is None:
        found["content"] = ""
    elif not isinstance(content, str):
        raise ValueError(f"content of message {number} must be text or a list of parts, got {type(content).__name__}")
    if found.get("tool_calls"):
        if not isinstance(found["tool_calls"], list):
            raise ValueError(f"tool_calls of message {number} must be a list")
        found["tool_calls"] = [_tool_call(number, call) for call in found["tool_calls"]]
    return found


def _parts(number: int, role: str, content: list[Any]) -> str | list[dict[str, Any]]:
    """Return the text of a content, or its parts if it has images."""
    parts = [_part(number, role, part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(number: int, role: str, part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind in ("text", "input_text"):
        return {"type": "text", "text": str(part.get("text", ""))}
    if kind != "image_url":
        raise ValueError(
            f"message {number} has a part of type {kind!r}; only parts of type 'text', and 'image_url' in messages of "
            "the user, can be read here"
        )
    if role != "user":
        raise ValueError(f"message {number} has an image and role {role!r}; images are read in messages of the user")
    try:
        return of_url(part)
    except ValueError as error:
        raise ValueError(f"message {number}: {error}") from error


def _tool_call(number: int, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"message {number} has a tool call without the name of its function")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"message {number}: arguments of a tool call must be JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"message {number}: arguments of a tool call must be an object")
    return {**call, "function": {**function, "arguments": arguments}}
