"""What the routes say of themselves, for the OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, WithJsonSchema

from trinity.explorer.api.image_parts import MEDIA_TYPES

_TEXT = {"type": "string"}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list_of(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"type": "array", "items": item, "minItems": 1})


def _either_of(*items: dict[str, Any]) -> WithJsonSchema:
    return _list_of({"anyOf": list(items)})


def _parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": list(parts)}}]}


def _of_kind(kind: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return _object(("type", *required), type={"const": kind}, **properties)


def _texts(*kinds: str) -> list[dict[str, Any]]:
    return [_of_kind(kind, ("text",), text=_TEXT) for kind in kinds]


_OBJECT = {"type": "object"}
_FUNCTION = _object(("name",), name={**_TEXT, "minLength": 1}, description=_TEXT, parameters=_OBJECT)
_ARGUMENTS = {
    **_TEXT,
    "contentMediaType": "application/json",
    "pattern": r'^\{("[a-z]{1,4}": ?(\d{1,9}|"[^"\\\x00-\x1f]{0,9}"))?\}$',
}
_CALLED = _object(("name",), name=_TEXT, arguments={"anyOf": [_ARGUMENTS, _OBJECT]})
_URL = {**_TEXT, "pattern": r"^data:image/(png|jpeg|webp|gif|bmp);base64,([A-Za-z0-9+/]{4}){0,40}$"}
_DETAIL = {"enum": ["auto", "high"]}
_IMAGE = _of_kind("image_url", ("image_url",), image_url=_object(("url",), url=_URL, detail=_DETAIL))
_SOURCE = _object(
    ("type", "media_type", "data"),
    type={"const": "base64"},
    media_type={"enum": list(MEDIA_TYPES)},
    data={**_TEXT, "pattern": "^([A-Za-z0-9+/]{4}){0,40}$"},
)
# Values that a check in code refuses all the same are not all said here; those that are said are what clients send.
_CALLS = {
    "type": "array",
    "items": _object(("id", "type", "function"), id=_TEXT, type={"const": "function"}, function=_CALLED),
}


def _chat_message(roles: list[str], *parts: dict[str, Any]) -> dict[str, Any]:
    texts = dict.fromkeys(("name", "reasoning_content", "tool_call_id"), _TEXT)
    return _object(("role", "content"), role={"enum": roles}, content=_parts(*parts), tool_calls=_CALLS, **texts)


CHAT_MESSAGES = _either_of(
    _chat_message(["user"], *_texts("text"), _IMAGE),
    _chat_message(["system", "assistant", "tool"], *_texts("text")),
)
TOOLS = _list_of(_object(("type", "function"), type={"const": "function"}, function=_FUNCTION))
_OF_USER = (
    *_texts("text"),
    _of_kind("image", ("source",), source=_SOURCE),
    _of_kind("tool_result", ("tool_use_id",), tool_use_id=_TEXT, content=_parts(*_texts("text"))),
)
_OF_ASSISTANT = (
    *_texts("text"),
    _of_kind("thinking", ("thinking",), thinking=_TEXT, signature=_TEXT),
    _of_kind("tool_use", ("id", "name", "input"), id=_TEXT, name=_TEXT, input=_OBJECT),
)
BLOCK_MESSAGES = _either_of(
    _object(("role", "content"), role={"const": "user"}, content=_parts(*_OF_USER)),
    _object(("role", "content"), role={"const": "assistant"}, content=_parts(*_OF_ASSISTANT)),
)
ITEMS = _either_of(
    _object(
        ("role", "content"),
        type={"const": "message"},
        role={"const": "user"},
        content=_parts(*_texts("input_text"), _of_kind("input_image", ("image_url",), image_url=_URL, detail=_DETAIL)),
    ),
    _object(("role", "content"), role={"enum": ["system", "developer"]}, content=_parts(*_texts("input_text"))),
    _of_kind("message", ("role", "content"), role={"const": "assistant"}, content=_parts(*_texts("output_text"))),
    _of_kind("function_call", ("call_id", "name", "arguments"), call_id=_TEXT, name=_TEXT, arguments=_ARGUMENTS),
    _of_kind("function_call_output", ("call_id", "output"), call_id=_TEXT, output=_TEXT),
    _of_kind("reasoning", content={"type": "array", "items": _of_kind("reasoning_text", ("text",), text=_TEXT)}),
)
_STATUSES = {
    400: "A field is missing, unknown, or cannot be taken.",
    401: "The token is missing or wrong.",
    403: "The request comes from a foreign page, or names another server.",
    408: "The body has not arrived in time.",
    413: "The body is too large.",
    422: "The response does not have the tool calls that were asked for.",
    429: "Too many requests are under way; ask again after Retry-After.",
    503: "The engine cannot answer the request.",
    504: "No response in time.",
}


def described(kind: type[BaseModel]) -> dict[str, Any]:
    """Return what a route says of itself: its body, its errors, its token.

    Args:
        kind: of the body.
    """
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}", mode="validation")
    return described_by(inlined(schema), _STATUSES)


def described_by(schema: dict[str, Any] | None, statuses: Mapping[int, str]) -> dict[str, Any]:
    """Return what a route says of itself.

    Args:
        schema: of the body; None: it has none.
        statuses: of its errors, with what they mean.
    """
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    return (body if schema else {}) | {
        "responses": {str(status): {"description": text} for status, text in statuses.items()}
    }


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references to its own definitions."""
    parts: dict[str, Any] = {}
    found = _without_parts(schema, parts)
    made: dict[str, Any] = _inlined(found, parts)
    return made


def _without_parts(schema: Any, parts: dict[str, Any]) -> Any:
    """Return a schema whose definitions, at any depth, are moved to `parts`."""
    if isinstance(schema, list):
        return [_without_parts(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    parts |= {name: _without_parts(part, parts) for name, part in schema.get("$defs", {}).items()}
    return {name: _without_parts(value, parts) for name, value in schema.items() if name != "$defs"}


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {name: _inlined(value, parts) for name, value in schema.items()}
