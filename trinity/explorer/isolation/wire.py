"""Calls of engines, and their results, as bytes that hold no code.

A call is JSON. A result is a header of JSON with tensors, after which experiences follow as they are stored. So the two
sides may be programs that did not start each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trinity.common import errors
from trinity.common.errors import EngineError, ExitCode, TrinityError
from trinity.common.experience import Experience
from trinity.common.models.said import Said
from trinity.common.payload import decode, encode, parts
from trinity.runtime.base import RemoteError


def call_bytes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return the arguments of a call.

    Raises:
        EngineError: one of them is no JSON (E5641).
    """
    try:
        return json.dumps({"args": list(args), "kwargs": dict(kwargs)}).encode()
    except (TypeError, ValueError) as error:
        raise EngineError(
            f"what a workflow gives an inference model of another process must be text, numbers, lists and mappings: "
            f"{error}",
            code="E5641",
        ) from error


def call_of(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call.

    Raises:
        ValueError: they are none.
    """
    try:
        given = json.loads(data)
        if b"\\u" in data:
            json.dumps(given, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a call must be JSON: {error}") from error
    if not isinstance(given, dict) or not given.keys() <= {"args", "kwargs"}:
        raise ValueError("a call is an object with args and kwargs and nothing else")
    args, kwargs = given.get("args"), given.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError("args of a call must be a list, and kwargs an object")
    if kwargs.get("said") is not None:
        kwargs["said"] = _said_of(kwargs["said"])
    return args, kwargs


def _said_of(value: Any) -> Said:
    """Return the beginning of a conversation.

    Raises:
        ValueError: it is none.
    """
    match value:
        case [int(), list() as tokens, int()] if all(type(token) is int for token in tokens):
            said = Said(*value)
            if said.messages > 0 and 0 <= said.prompt_length <= len(tokens):
                return said
    raise ValueError("said must be a number of messages, tokens, and the length of their prompt")


def result_bytes(version: int, value: Any) -> bytes:
    """Return the result of a call, and the version of the engine's weights."""
    if isinstance(value, Tensor):
        return encode({"version": version, "kind": "tensor"}, {"value": value})
    if isinstance(value, Experience):
        return encode({"version": version, "kind": "experience"}, {}) + value.serialize()
    if isinstance(value, list):
        return encode({"version": version, "kind": "experiences"}, {}) + Experience.serialize_many(value)
    return encode({"version": version, "kind": "plain", "value": value}, {})


def result_of(data: bytes) -> tuple[int, Any]:
    """Return version and result of a call.

    Raises:
        DataError: the bytes are damaged (E5101).
    """
    head, *rest = parts(data)
    header, tensors = decode(head)
    if header["kind"] == "tensor":
        return header["version"], tensors["value"]
    if header["kind"] == "plain":
        return header["version"], header["value"]
    found = [Experience.deserialize(each) for each in rest]
    return header["version"], found if header["kind"] == "experiences" else found[0]


def failure_of(error: BaseException) -> dict[str, Any]:
    """Return an error in JSON types; where it was raised is told to nobody."""
    is_own = isinstance(error, TrinityError)
    return {
        "kind": type(error).__name__,
        "message": str(error.args[0]) if is_own and error.args else str(error),
        "code": error.code if isinstance(error, TrinityError) else None,
        "exit_code": int(error.exit_code if isinstance(error, TrinityError) else ExitCode.RUNTIME),
    }


def error_of(failure: Mapping[str, Any]) -> Exception:
    """Return the error that was described, of its class if it is ours."""
    kind, message, code = str(failure.get("kind")), str(failure.get("message")), failure.get("code")
    found = vars(errors).get(kind)
    if isinstance(found, type) and issubclass(found, TrinityError):
        return found(message, code=code)
    error = RemoteError(f"{kind}: {message}", code=code)
    error.exit_code = ExitCode(failure.get("exit_code", int(ExitCode.RUNTIME)))
    return error
