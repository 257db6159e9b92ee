"""What the routes say of themselves, for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, WithJsonSchema

_TEXT = {"type": "string"}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list_of(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"type": "array", "items": item, "minItems": 1})


def _content(*kinds: str) -> dict[str, Any]:
    parts = {"type": "array", "items": _object(("type", "text"), type={"enum": list(kinds)}, text=_TEXT)}
    return {"anyOf": [_TEXT, parts]}


_FUNCTION = _object(("name",), name={**_TEXT, "minLength": 1}, description=_TEXT, parameters={"type": "object"})
_CALLED = _object(("name",), name=_TEXT, arguments={"type": "string", "const": "{}"})
# Values that a check in code refuses all the same are not all said here; those that are said are what clients send.
CHAT_MESSAGES = _list_of(
    _object(
        ("role", "content"),
        role={"enum": ["system", "user", "assistant", "tool"]},
        content=_content("text"),
        name=_TEXT,
        reasoning_content=_TEXT,
        tool_call_id=_TEXT,
        tool_calls={
            "type": "array",
            "items": _object(("id", "type", "function"), id=_TEXT, type={"const": "function"}, function=_CALLED),
        },
    )
)
TOOLS = _list_of(_object(("type", "function"), type={"const": "function"}, function=_FUNCTION))
BLOCK_MESSAGES = _list_of(
    _object(("role", "content"), role={"enum": ["user", "assistant"]}, content=_content("text")),
)
ITEMS = _list_of(
    _object(("role", "content"), role={"enum": ["user", "assistant", "system"]}, content=_content("input_text")),
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
    schema = _inlined(schema, schema.pop("$defs", {}))
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {str(status): {"description": text} for status, text in _STATUSES.items()},
    }


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {name: _inlined(value, parts) for name, value in schema.items()}
