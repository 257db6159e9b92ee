"""What a distant workflow may ask of an engine, and with which arguments.

They are checked before the engine has them: its thread, which all callers share, ends with a value that it cannot use.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from trinity.common.models.generate_params import MAX_TOP_LOGPROBS
from trinity.common.models.inference_model import InferenceModel
from trinity.explorer.api.descriptions import CHAT_MESSAGES, TOOLS
from trinity.explorer.api.errors import BadRequestError
from trinity.explorer.api.requests import (
    MAX_CHOICES,
    MAX_INT,
    MIN_TEMPERATURE,
    Integer,
    StopText,
    Temperature,
    TopK,
    TopP,
    checked,
)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: str


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    role: str
    content: str | list[_Part] | dict[str, Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Template(_Arguments):
    chat_template: str | None = None
    enable_thinking: bool | None = None


Messages = Annotated[list[_Message], Field(min_length=1), CHAT_MESSAGES]
Tools = Annotated[list[dict[str, Any]], TOOLS]


class SamplingArguments(_Arguments):
    """Arguments of a call that samples; see `GenerateParams`."""

    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_tokens: int | None = Field(None, ge=0, le=MAX_INT)
    max_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    stop: StopText | Annotated[list[StopText], Field(max_length=64)] | None = None
    seed: int | None = None
    logprobs: bool | Annotated[int, Field(ge=0, le=1)] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    ignore_eos: bool | None = None
    sample_ids: list[str] | None = None
    participant: str | None = None
    enable_prompt_truncation: bool | None = None
    repetition_penalty: float | None = Field(None, ge=1, le=1)


class GenerateArguments(SamplingArguments):
    """Arguments of `generate`."""

    prompt: str | list[Integer]


class ChatArguments(SamplingArguments):
    """Arguments of `chat`; `said` is checked as it is read."""

    messages: Messages
    tools: Tools | None = None
    said: Annotated[Any, WithJsonSchema({"type": "null"})] = None
    template_args: _Template | None = None


class LogprobsArguments(_Arguments):
    """Arguments of `logprobs`."""

    tokens: Annotated[list[Integer], Field(min_length=2)]
    temperature: Annotated[float, Field(ge=MIN_TEMPERATURE, allow_inf_nan=False)] = 1.0


class ConversationArguments(_Arguments):
    """Arguments of `convert_messages_to_experience`."""

    messages: Messages
    tools: Tools | None = None
    temperature: Temperature | None = None
    template_args: _Template | None = None


class LengthArguments(_Arguments):
    """Arguments of `get_message_token_len`."""

    messages: Messages
    template_args: _Template | None = None


class ParticipantArguments(_Arguments):
    """Arguments of the methods of rounds."""

    participant: str = Field(min_length=1, max_length=1024)


class NoArguments(_Arguments):
    """No arguments."""


METHODS: Mapping[str, type[_Arguments]] = {
    "generate": GenerateArguments,
    "chat": ChatArguments,
    "logprobs": LogprobsArguments,
    "convert_messages_to_experience": ConversationArguments,
    "get_message_token_len": LengthArguments,
    "vocabulary": NoArguments,
    "stats": NoArguments,
    "join_round": ParticipantArguments,
    "leave_round": ParticipantArguments,
    "waits_in_round": ParticipantArguments,
}
"""What a distant workflow may ask of an engine: all but its weights and its end."""


def check_call(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Verify the arguments of a method.

    Raises:
        BadRequestError: one is missing, unknown, or of another form.
    """
    try:
        bound = inspect.signature(getattr(InferenceModel, method)).bind(None, *args, **kwargs)
    except TypeError as error:
        raise BadRequestError(f"{method}: {error}; see InferenceModel.{method}") from error
    given = {name: value for name, value in bound.arguments.items() if name not in ("self", "arguments")}
    checked(METHODS[method], given | bound.arguments.get("arguments", {}))


def described_call(method: str) -> dict[str, Any]:
    """Return the schema of the body of a call: all arguments by name."""
    kwargs = METHODS[method].model_json_schema(mode="validation")
    return {
        "type": "object",
        "required": ["args", "kwargs"],
        "additionalProperties": False,
        "properties": {"args": {"type": "array", "maxItems": 0}, "kwargs": kwargs},
    }
