"""`/v1/responses`: requests as conversations, and answers.

Nothing is stored: a conversation continues by its items, not by the id of an earlier response.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from trinity.common.experience import Experience
from trinity.explorer.api.calls import RunningCall, Served
from trinity.explorer.api.descriptions import ITEMS, described
from trinity.explorer.api.errors import HTTPError
from trinity.explorer.api.requests import MAX_INT, WITHOUT_EFFECT, ChatRequest, Temperature, TopP, checked, read
from trinity.explorer.api.response_items import messages_of_items
from trinity.explorer.api.responses import usage_of
from trinity.explorer.api.service import Form, Service
from trinity.explorer.api.streaming import AnswerPart, message_of

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "previous_response_id": (None,),
    "conversation": (None,),
    "prompt": (None,),
    "include": (None, []),
    "background": (None, False),
    "max_tool_calls": (None,),
    "top_logprobs": (None, 0),
    "truncation": (None, "disabled"),
    "reasoning": (None, {}, {"effort": None, "summary": None}),
    "text": (None, {}, {"format": {"type": "text"}}),
    "stream_options": (None, {}, {"include_obfuscation": False}),
}


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    name: str = Field(min_length=1)
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: Literal[False] | None = None

    def as_function(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "parameters": self.parameters or {}}
        if self.description is not None:
            found["description"] = self.description
        return {"type": "function", "function": found}


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    name: str = Field(min_length=1)


class ResponsesRequest(BaseModel):
    """`POST /v1/responses`."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], ITEMS]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Named | None = None
    parallel_tool_calls: bool | None = None

    def as_chat(self) -> ChatRequest:
        """Return the same as a request of chat completions.

        Raises:
            BadRequestError: an item that cannot be read here, or a value that cannot be taken.
        """
        found: dict[str, Any] = {"messages": messages_of_items(self.input, self.instructions)}
        given = {
            "model": self.model,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "parallel_tool_calls": self.parallel_tool_calls,
            "tools": [tool.as_function() for tool in self.tools or ()] or None,
        }
        found |= {name: value for name, value in given.items() if value is not None}
        choice = self.tool_choice
        if isinstance(choice, _Named):
            found["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        elif choice is not None:
            found["tool_choice"] = choice
        return checked(ChatRequest, found)


class ResponsesForm:
    """The answer to one request.

    Args:
        request: what is asked.
        model: answers.
    """

    def __init__(self, request: ResponsesRequest, model: Served) -> None:
        self.asked = request.as_chat()
        self.is_stream = bool(request.stream)
        self._request, self._model, self._created = request, model.model_name, int(time.time())
        self._numbers = itertools.count()

    def whole(self, experiences: Sequence[Experience], call_id: str) -> dict[str, Any]:
        """Return the answer as one object."""
        (exp,) = experiences
        used, is_cut = usage_of(experiences), exp.info.get("finish_reason") == "length"
        return self._response(call_id, "incomplete" if is_cut else "completed") | {
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": _items(exp, call_id),
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["total_tokens"],
            },
        }

    async def events(self, parts: AsyncIterator[AnswerPart], running: RunningCall) -> AsyncIterator[str]:
        """Yield the answer as events: a response, its items, its end."""
        call_id = running.call_id
        begun = self._response(call_id, "in_progress")
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        open_items: list[_OpenItem] = []
        async for part in parts:
            for kind, text in (("reasoning", part.reasoning), ("message", part.content)):
                if not text:
                    continue
                if not open_items or open_items[-1].kind != kind:
                    for line in self._closed(open_items[-1:], call_id):
                        yield line
                    open_items.append(_OpenItem(kind, len(open_items)))
                    for line in self._opened(open_items[-1], call_id):
                        yield line
                item = open_items[-1]
                item.text += text
                yield self._event(item.event + ".delta", **item.place(call_id), delta=text, **item.logprobs)
            if part.final is not None:
                for line in self._closed(open_items[-1:], call_id):
                    yield line
                for line in self._calls(part.final, call_id, len(open_items)):
                    yield line
                whole = self.whole([part.final], call_id)
                yield self._event(f"response.{whole['status']}", response=whole)

    def error(self, error: HTTPError) -> str:
        """Return an error as an event."""
        return self._event("error", message=str(error), code=error.code, param=error.param)

    def _opened(self, item: _OpenItem, call_id: str) -> Iterator[str]:
        empty = item.item(call_id, "in_progress") | {"content": []}
        yield self._event("response.output_item.added", output_index=item.index, item=empty)
        place = item.place(call_id)
        yield self._event("response.content_part.added", **place, part=item.part(""))

    def _closed(self, items: Sequence[_OpenItem], call_id: str) -> Iterator[str]:
        for item in items:
            place = item.place(call_id)
            yield self._event(item.event + ".done", **place, text=item.text, **item.logprobs)
            yield self._event("response.content_part.done", **place, part=item.part(item.text))
            done = item.item(call_id, "completed")
            yield self._event("response.output_item.done", output_index=item.index, item=done)

    def _calls(self, exp: Experience, call_id: str, index: int) -> Iterator[str]:
        for item in _call_items(exp):
            place = {"item_id": item["id"], "output_index": index}
            begun = item | {"arguments": "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=index, item=begun)
            yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("response.function_call_arguments.done", **place, **done)
            yield self._event("response.output_item.done", output_index=index, item=item)
            index += 1

    def _event(self, kind: str, **fields: Any) -> str:
        data = {"type": kind, "sequence_number": next(self._numbers), **fields}
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    def _response(self, call_id: str, status: str) -> dict[str, Any]:
        asked = self._request
        choice = asked.tool_choice
        return {
            "id": f"resp_{call_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "model": self._model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": choice.model_dump() if isinstance(choice, _Named) else choice or "auto",
            "tools": [{"strict": False, **tool.model_dump(exclude_none=True)} for tool in asked.tools or ()],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": {},
        }


class _OpenItem:
    """An item of a stream: a thought or a text."""

    def __init__(self, kind: str, index: int) -> None:
        self.kind, self.index, self.text = kind, index, ""
        self.event = "response.output_text" if kind == "message" else "response.reasoning_text"
        self.logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}

    def place(self, call_id: str) -> dict[str, Any]:
        return {"item_id": _id(self.kind, call_id), "output_index": self.index, "content_index": 0}

    def part(self, text: str) -> dict[str, Any]:
        return _text_part(text) if self.kind == "message" else {"type": "reasoning_text", "text": text}

    def item(self, call_id: str, status: str) -> dict[str, Any]:
        return _item(self.kind, self.text, call_id) | {"status": status}


def response_routes(service: Service) -> APIRouter:
    """Return the routes of this interface."""
    router = APIRouter()

    @router.post("/v1/responses", openapi_extra=described(ResponsesRequest))
    async def responses(request: Request) -> Response:
        """Answer a conversation."""

        def form(body: bytes, model: Served) -> Form:
            return ResponsesForm(read(ResponsesRequest, body, without_effect=WITHOUT_EFFECT, neutral=NEUTRAL), model)

        return await service.answer(request, form)

    return router


def _items(exp: Experience, call_id: str) -> list[dict[str, Any]]:
    message = message_of(exp)
    reasoning, content = message.get("reasoning_content"), message["content"]
    found = [_item("reasoning", reasoning, call_id)] if reasoning else []
    if content:
        found.append(_item("message", content, call_id))
    return [*found, *_call_items(exp)]


def _item(kind: str, text: str, call_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {"id": _id(kind, call_id), "type": kind, "status": "completed"}
    if kind == "message":
        return found | {"role": "assistant", "content": [_text_part(text)]}
    return found | {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def _call_items(exp: Experience) -> list[dict[str, Any]]:
    return [
        {
            "id": f"fc_{call['id']}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": json.dumps(call["function"]["arguments"]),
        }
        for call in message_of(exp).get("tool_calls", ())
    ]


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _id(kind: str, call_id: str) -> str:
    return f"{'msg' if kind == 'message' else 'rs'}_{call_id}"
