"""What the routes say of themselves, for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_STATUSES = {
    400: "A field is missing, unknown, or cannot be taken.",
    401: "The token is missing or wrong.",
    403: "The request comes from a foreign page, or names another server.",
    408: "The body has not arrived in time.",
    413: "The body is too large.",
    422: "The answer has not the tool calls that were asked for.",
    429: "Too many requests are under way; ask again after Retry-After.",
    503: "The engine cannot answer.",
    504: "No answer in time.",
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
