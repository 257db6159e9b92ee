"""Routes of mode serve beside those of the OpenAI interface."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from trinity.common.errors import StoreError, TrinityError
from trinity.explorer.api.descriptions import described_by
from trinity.explorer.api.errors import BadRequestError, HTTPError, error_body
from trinity.explorer.api.gate import Gate
from trinity.explorer.proxy.commit import Committed, FullBufferError
from trinity.explorer.proxy.models import MAX_RUN, NO_CALLER, TASK_PATTERN, caller_of
from trinity.explorer.proxy.record import Caller, FeedbackError, Rewarded
from trinity.utils.log import get_logger

logger = get_logger("explorer")

T = TypeVar("T")

MAX_BODY_BYTES = 1024 * 1024
MAX_IDS = 10_000
MAX_ID_LENGTH = 256
RETRY_AFTER_S = 1
_FIELDS = {"reward", "msg_ids", "task_id", "run_id"}
_FEEDBACK_ERRORS = {
    403: ("permission_error", "foreign_run"),
    409: ("invalid_request_error", "already_committed"),
    422: ("invalid_request_error", "unknown_id"),
}
_FEEDBACK: dict[str, Any] = {
    "type": "object",
    "required": ["reward"],
    "additionalProperties": False,
    "properties": {
        "msg_ids": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH},
            "minItems": 1,
            "maxItems": MAX_IDS,
        },
        "task_id": {"type": "string", "pattern": TASK_PATTERN},
        "run_id": {"type": "integer", "minimum": 0, "maximum": MAX_RUN},
        "reward": {"type": "number"},
    },
}
_STATUSES = {
    401: "The token is missing or wrong.",
    503: "The store cannot take it now.",
}
_OF_FEEDBACK = {
    403: "The rollout has no calls here, or a response is of another one.",
    408: "The body has not arrived in time.",
    409: "A response is committed with another reward.",
    413: "The body is too large.",
    422: "No finite reward, an unknown id, or a field of another form.",
}
_DIGITS = frozenset("0123456789abcdef")


class Serving(Protocol):
    """What the routes ask for; see `ProxyService`."""

    def is_token(self, token: str) -> bool:
        """Return whether it is that of callers."""

    async def reward(self, reward: float, message_ids: list[str] | None, caller: Caller | None) -> Rewarded:
        """Give recorded answers a reward."""

    async def commit(self) -> Committed:
        """Append what is rewarded to the experience store."""

    async def status(self) -> dict[str, Any]:
        """Return how the service is, as plain values."""


def proxy_routes(service: Serving, loop: asyncio.AbstractEventLoop) -> Callable[[FastAPI], None]:
    """Return what adds `/feedback`, `/commit` and `/status` to an application.

    Args:
        service: answers.
        loop: on which it is asked.
    """
    router = APIRouter()

    def admit(request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not service.is_token(token.strip()):
            text = "the token is missing or wrong; send `Authorization: Bearer <token>`"
            raise HTTPError(401, text, kind="authentication_error", code="invalid_api_key")

    async def asked(call: Coroutine[Any, Any, T]) -> T:
        # Shielded: a commit that was begun ends, whether its caller waits or not.
        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop)))

    @router.post("/feedback", openapi_extra=described_by(_FEEDBACK, _STATUSES | _OF_FEEDBACK))
    async def feedback(request: Request) -> Response:
        """Give recorded answers a reward."""

        async def answer() -> dict[str, Any]:
            admit(request)
            gate: Gate = request.app.state.service.gate
            reward, ids, caller = read_feedback(await gate.body(request, most=MAX_BODY_BYTES))
            return {"status": "success", **asdict(await asked(service.reward(reward, ids, caller)))}

        return await _answered(answer())

    @router.post("/commit", openapi_extra=described_by(None, _STATUSES))
    async def commit(request: Request) -> Response:
        """Move rewarded answers into the experience store."""

        async def answer() -> dict[str, Any]:
            admit(request)
            return {"status": "success", **asdict(await asked(service.commit()))}

        return await _answered(answer())

    @router.get("/status", openapi_extra=described_by(None, _STATUSES))
    async def status(request: Request) -> Response:
        """Return how the service is."""

        async def answer() -> dict[str, Any]:
            admit(request)
            return await asked(service.status())

        return await _answered(answer())

    def add(app: FastAPI) -> None:
        app.include_router(router)

    return add


def read_feedback(body: bytes) -> tuple[float, list[str] | None, Caller | None]:
    """Return reward, ids of responses and what they belong to, of a request.

    Ids are without the prefix of their kind, such as `chatcmpl-`.

    Raises:
        BadRequestError: no object with a finite reward, and ids or a task.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body must be JSON: {error}") from error
    if not isinstance(given, dict) or not given.keys() <= _FIELDS:
        raise BadRequestError(f"the body must be an object with {', '.join(sorted(_FIELDS))} and nothing else")
    reward = given.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not _is_finite(reward):
        raise BadRequestError(f"reward must be a finite number, got {json.dumps(reward)[:80]}", param="reward")
    caller = caller_of(given.get("task_id"), given.get("run_id"))
    ids = given.get("msg_ids")
    if ids is None:
        if caller == NO_CALLER:
            raise BadRequestError("give msg_ids, or a task_id whose calls get the reward", param="msg_ids")
        return float(reward), None, caller
    if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_IDS or not all(_is_id(each) for each in ids):
        raise BadRequestError(f"msg_ids must be a list of 1 to {MAX_IDS} ids of responses", param="msg_ids")
    return float(reward), [_plain_id(each) for each in ids], None if caller == NO_CALLER else caller


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH


def _plain_id(text: str) -> str:
    """Return the id without what a route put before it."""
    name, mark, choice = text.partition("#")
    digits = name[-32:]
    return (digits if len(digits) == 32 and set(digits) <= _DIGITS else name) + mark + choice


async def _answered(call: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """Return the answer, or the error as the OpenAI interface has it.

    Raises:
        HTTPError: what the application answers.
    """
    try:
        return JSONResponse(await call)
    except BadRequestError as error:
        said = error_body(str(error), kind="invalid_request_error", param=error.param, code=error.code)
        return JSONResponse(said, 422)
    except FeedbackError as error:
        kind, code = _FEEDBACK_ERRORS[error.status]
        return JSONResponse(error_body(str(error), kind=kind, code=code), error.status)
    except FullBufferError as error:
        said = error_body(str(error), kind="server_error", code=error.code)
        return JSONResponse(said, 503, {"Retry-After": str(RETRY_AFTER_S)})
    except TrinityError as error:
        logger.warning("a request of mode serve failed: %s", error)
        status = 503 if isinstance(error, StoreError) else 500
        return JSONResponse(error_body(str(error), kind="server_error", code=error.code), status)
