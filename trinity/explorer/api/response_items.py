"""Items of `/v1/responses` as messages of chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trinity.explorer.api.errors import BadRequestError
from trinity.explorer.api.image_parts import of_url

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_IMAGE = "input_image"
_TEXTS = ("input_text", "output_text", "text")
_OF_CALL = {"type", "id", "call_id", "name", "arguments", "status", "namespace"}
_OF_MESSAGE = {"type", "role", "content", "id", "status", "phase"}


def messages_of_items(given: str | Sequence[Mapping[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """Return the messages of a conversation.

    A thought, a text and calls of tools that follow each other are one answer.

    Args:
        given: text of the user, or items.
        instructions: come first, as the system's.

    Raises:
        BadRequestError: an item that cannot be read here.
    """
    found: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for number, item in enumerate(given):
        _add(found, item, f"input[{number}]")
    return found


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") == "assistant":
        _answer(messages, "content")["content"] = _content(item, where)
    elif kind == "message" and isinstance(item.get("role"), str) and item["role"] in _ROLES:
        messages.append({"role": _ROLES[item["role"]], "content": _content(item, where)})
    elif kind == "function_call":
        _answer(messages, "").setdefault("tool_calls", []).append(_call(item, where))
    elif kind == "function_call_output" and isinstance(item.get("call_id"), str):
        content = _texts(item.get("output"), where)
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
    elif kind == "reasoning":
        _answer(messages, "reasoning_content")["reasoning_content"] = _thought(item, where)
    else:
        raise BadRequestError(
            f"{where} is of type {str(kind)[:80]!r} with role {str(item.get('role'))[:80]!r}; messages of user, "
            "assistant, system or developer, function_call, function_call_output and reasoning are read here",
            param="input",
        )


def _answer(messages: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the answer in progress, or a new one.

    A thought begins a new one, and so does a second text.
    """
    last = messages[-1] if messages else {}
    goes_on = last.get("role") == "assistant" and name != "reasoning_content"
    if not goes_on or (name and (last.get("content") or last.get("tool_calls"))):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(item: Mapping[str, Any], where: str) -> str | list[dict[str, Any]]:
    others = item.keys() - _OF_MESSAGE
    if others:
        raise BadRequestError(f"{where}: `{min(others)}` is not known here", param="input")
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    if not any(_is_image(part) for part in parts):
        return _texts(content, where)
    if item.get("role") != "user":
        raise BadRequestError(f"{where}: images are read in messages of the user", param="input")
    return [_image(part, where) if _is_image(part) else _text(part, where) for part in parts]


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == _IMAGE


def _text(part: Any, where: str) -> dict[str, Any]:
    return {"type": "text", "text": _texts([part], where)}


def _image(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a part `input_image` as one of chat completions.

    Raises:
        BadRequestError: no data: URL, or one that cannot be read.
    """
    if part.get("file_id") is not None or not isinstance(part.get("image_url"), str):
        raise BadRequestError(
            f"{where}: a part of type 'input_image' needs image_url: 'data:image/png;base64,...'; no file is kept here",
            param="input",
        )
    try:
        return of_url({"image_url": {"url": part["image_url"], "detail": part.get("detail")}})
    except ValueError as error:
        raise BadRequestError(f"{where}: {error}", param="input") from error


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    texts = [item.get(name) for name in ("call_id", "name", "arguments")]
    if not all(isinstance(text, str) for text in texts) or item.keys() - _OF_CALL:
        raise BadRequestError(
            f"{where}: a function_call has call_id, name and arguments, all of them text", param="input"
        )
    number, name, arguments = texts
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def _thought(item: Mapping[str, Any], where: str) -> str:
    if item.get("encrypted_content") is not None:
        raise BadRequestError(f"{where}: reasoning must be text, not encrypted content", param="input")
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    if not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
        raise BadRequestError(f"{where}: the content of reasoning must have type 'reasoning_text'", param="input")
    return "".join(part["text"] for part in parts)


def _texts(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [p.get("text") for p in parts if isinstance(p, dict) and p.get("type") in _TEXTS]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise BadRequestError(f"{where}: its content must be text, or parts of text", param="input")
    return "".join(map(str, texts))
