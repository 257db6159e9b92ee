"""`/v1/messages`, as Anthropic has it: its requests and its answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from trinity.common.experience import Experience
from trinity.explorer.api.calls import RunningCall, Served
from trinity.explorer.api.descriptions import BLOCK_MESSAGES, described
from trinity.explorer.api.errors import MESSAGES_PATH, BadRequestError, HTTPError
from trinity.explorer.api.image_parts import of_source
from trinity.explorer.api.requests import MAX_INT, ChatRequest, StopText, Temperature, TopK, TopP, checked, read
from trinity.explorer.api.responses import usage_of
from trinity.explorer.api.service import Form, Service
from trinity.explorer.api.streaming import AnswerPart, message_of

WITHOUT_EFFECT = frozenset({
    "metadata", "service_tier", "cache_control", "inference_geo", "diagnostics", "speed", "user_profile_id",
    "workspace_id",
})  # fmt: skip
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "thinking": (None, {"type": "disabled"}),
    "container": (None,),
    "mcp_servers": (None, []),
    "context_management": (None,),
    "output_config": (None,),
    "output_format": (None,),
}


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1)
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: Literal[False] | None = None
    cache_control: Any = None

    def as_function(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            found["description"] = self.description
        return {"type": "function", "function": found}


class _ToolChoice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesRequest(BaseModel):
    """`POST /v1/messages`."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    messages: Annotated[list[dict[str, Any]], BLOCK_MESSAGES] = Field(min_length=1)
    max_tokens: int = Field(ge=1, le=MAX_INT)
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[StopText] | None = Field(None, max_length=64)
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None

    def as_chat(self) -> ChatRequest:
        """Return the same as a request of chat completions.

        Raises:
            BadRequestError: a block that cannot be read here, or a value that cannot be taken.
        """
        names = ("model", "max_tokens", "stream", "temperature", "top_p", "top_k")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.stop_sequences:
            found["stop"] = self.stop_sequences
        if self.tools:
            found["tools"] = [tool.as_function() for tool in self.tools]
        found |= self._choice()
        system = [] if self.system is None else [{"role": "system", "content": _texts(self.system, "system")}]
        messages = [chat for number, message in enumerate(self.messages) for chat in _chat_messages(number, message)]
        return checked(ChatRequest, found | {"messages": [*system, *messages]})

    def _choice(self) -> dict[str, Any]:
        choice = self.tool_choice
        if choice is None:
            return {}
        found: dict[str, Any] = {"tool_choice": {"any": "required"}.get(choice.type, choice.type)}
        if choice.type == "tool":
            found["tool_choice"] = {"type": "function", "function": {"name": choice.name or ""}}
        if choice.disable_parallel_tool_use:
            found["parallel_tool_calls"] = False
        return found


class MessagesForm:
    """The answer to one request, as a message.

    Args:
        request: what is asked.
        model: answers.
    """

    def __init__(self, request: MessagesRequest, model: Served) -> None:
        self.asked = request.as_chat()
        self.is_stream = bool(request.stream)
        self._model = model.model_name

    def whole(self, experiences: Sequence[Experience], call_id: str) -> dict[str, Any]:
        """Return the answer as one object."""
        (exp,) = experiences
        used = usage_of(experiences)
        return {
            **self._head(call_id),
            "content": _blocks(exp),
            **_stopped(exp),
            "usage": {"input_tokens": used["prompt_tokens"], "output_tokens": used["completion_tokens"]},
        }

    async def events(self, parts: AsyncIterator[AnswerPart], running: RunningCall) -> AsyncIterator[str]:
        """Yield the answer as events: a message, its blocks, its end."""
        begun = await running.prompt(0)
        number, kind = -1, ""
        is_begun = False
        async for part in parts:
            if not is_begun:
                is_begun = True
                count = len(begun.tokens) if begun is not None else part.final.prompt_length if part.final else 0
                usage = {"input_tokens": count, "output_tokens": 0}
                empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
                yield _event("message_start", message={**self._head(running.call_id), **empty})
            for name, text in (("thinking", part.reasoning), ("text", part.content)):
                if not text:
                    continue
                if kind != name:
                    if number >= 0:
                        yield _event("content_block_stop", index=number)
                    number, kind = number + 1, name
                    yield _event("content_block_start", index=number, content_block=_block(name, ""))
                yield _event("content_block_delta", index=number, delta={"type": f"{name}_delta", name: text})
            if part.final is not None:
                for line in _ending(part.final, number):
                    yield line

    def error(self, error: HTTPError) -> str:
        """Return an error as an event."""
        return f"event: error\ndata: {json.dumps(error.body(MESSAGES_PATH))}\n\n"

    def _head(self, call_id: str) -> dict[str, Any]:
        return {"id": f"msg_{call_id}", "type": "message", "role": "assistant", "model": self._model}


def message_routes(service: Service) -> APIRouter:
    """Return the routes of this interface."""
    router = APIRouter()

    @router.post(MESSAGES_PATH, openapi_extra=described(MessagesRequest))
    async def messages(request: Request) -> Response:
        """Answer a conversation."""

        def form(body: bytes, model: Served) -> Form:
            asked = read(MessagesRequest, body, without_effect=WITHOUT_EFFECT, neutral=NEUTRAL)
            return MessagesForm(asked, model)

        return await service.answer(request, form)

    return router


def _ending(exp: Experience, number: int) -> list[str]:
    """Return the events of the tool calls and of the end."""
    found = [_event("content_block_stop", index=number)] if number >= 0 else []
    for call in message_of(exp).get("tool_calls", ()):
        number += 1
        block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
        text = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        found += [
            _event("content_block_start", index=number, content_block=block),
            _event("content_block_delta", index=number, delta={"type": "input_json_delta", "partial_json": text}),
            _event("content_block_stop", index=number),
        ]
    used = {"output_tokens": len(exp.tokens) - exp.prompt_length}
    return [*found, _event("message_delta", delta=_stopped(exp), usage=used), _event("message_stop")]


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n"


def _block(name: str, text: str) -> dict[str, Any]:
    return {"type": name, name: text} | ({"signature": ""} if name == "thinking" else {})


def _blocks(exp: Experience) -> list[dict[str, Any]]:
    message = message_of(exp)
    found = [_block("thinking", message["reasoning_content"])] if message.get("reasoning_content") else []
    if message["content"]:
        found.append(_block("text", message["content"]))
    for call in message.get("tool_calls", ()):
        function = call["function"]
        found.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]})
    return found


def _stopped(exp: Experience) -> dict[str, Any]:
    stop = exp.info.get("stop_text")
    if stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    if exp.info.get("finish_reason") == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    has_calls = bool(message_of(exp).get("tool_calls"))
    return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}


def _chat_messages(number: int, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message as messages of chat completions.

    Results of tools are messages of their own, before the rest.
    """
    role, content = message.get("role"), message.get("content")
    where = f"messages[{number}]"
    if role not in ("user", "assistant", "system") or message.keys() - {"role", "content"}:
        raise BadRequestError(f"{where} must have role user or assistant, and content alone", param="messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise BadRequestError(f"content of {where} must be text or a list of blocks", param="messages")
    found: list[dict[str, Any]] = []
    own: dict[str, Any] = {"role": role, "content": []}
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            own["content"].append({"type": "text", "text": block["text"]})
        elif kind == "image" and role == "user":
            own["content"].append(_image(block, where))
        elif kind == "tool_result" and role == "user" and isinstance(block.get("tool_use_id"), str):
            text = _texts(block.get("content") or "", where)
            found.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
        elif kind == "tool_use" and role == "assistant":
            own.setdefault("tool_calls", []).append(_call(block, where))
        elif kind == "thinking" and role == "assistant" and isinstance(block.get("thinking"), str):
            own["reasoning_content"] = own.get("reasoning_content", "") + block["thinking"]
        else:
            raise BadRequestError(
                f"{where} has a block of type {kind!r} that cannot be read here; supported are text blocks, tool_use "
                "and thinking blocks of the assistant, and tool_result and image blocks of the user",
                param="messages",
            )
    return [*found, own] if not found or own["content"] else found


def _image(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        return of_source(block)
    except ValueError as error:
        raise BadRequestError(f"{where}: {error}", param="messages") from error


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, given = block.get("name"), block.get("input", {})
    if not isinstance(block.get("id"), str) or not isinstance(name, str) or not isinstance(given, dict):
        raise BadRequestError(f"a tool_use of {where} needs id, name and input, an object", param="messages")
    return {"id": block["id"], "type": "function", "function": {"name": name, "arguments": given}}


def _texts(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [None]
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    if len(texts) < len(blocks) or not all(isinstance(text, str) for text in texts):
        raise BadRequestError(f"{where}: only text blocks can be read here", param=where.partition("[")[0])
    return "".join(map(str, texts))
