"""Routes by which distant workflows ask engines for exact tokens."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from trinity.common.errors import DataError, TrinityError
from trinity.common.models.inference_model import InferenceModel
from trinity.explorer.api.descriptions import described_by, inlined
from trinity.explorer.api.engine_calls import METHODS, check_call, described_call
from trinity.explorer.api.errors import HTTPError, http_error
from trinity.explorer.api.service import Service
from trinity.explorer.isolation.requested import PATH
from trinity.explorer.isolation.wire import call_of, failure_of, result_bytes
from trinity.utils.token import is_token

POLL_S = 0.5
BYTES = "application/octet-stream"
MAX_BODY_BYTES = 64 * 1024 * 1024
"""A call has a conversation with its images, and the tokens of its beginning."""
# What an engine raises for arguments that it cannot use, such as a conversation that no template takes. Its own
# failures are errors of ours.
_OF_ARGUMENTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_STATUSES = {
    400: "The arguments cannot be used.",
    401: "The key is missing or wrong.",
    404: "There is no such engine or method.",
    408: "The body has not arrived in time.",
    413: "The body is too large.",
    503: "The engine cannot answer.",
    504: "No result in time.",
}


def engine_routes(
    engines: Sequence[InferenceModel], key: str, loop: asyncio.AbstractEventLoop
) -> Callable[[FastAPI], None]:
    """Return what adds the routes to an application.

    Args:
        engines: of the rollout model and the auxiliary ones.
        key: that callers show.
        loop: on which the engines are asked.
    """

    async def ask(method: str, request: Request) -> Response:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not is_token(shown, key):
            return _refused(PermissionError("the key is not that of this inference model"), 401)
        index = request.path_params["index"]
        engine = next((each for number, each in enumerate(engines) if str(number) == index), None)
        if engine is None:
            return _refused(LookupError(f"there is no engine {index[:20]} here, only 0 to {len(engines) - 1}"), 404)
        service: Service = request.app.state.service
        try:
            args, kwargs = call_of(await service.gate.body(request, most=MAX_BODY_BYTES))
            check_call(method, args, kwargs)
        except HTTPError as error:
            return _refused(ValueError(str(error)), error.status, error.headers)
        except ValueError as error:
            return _refused(error, 400)
        call = asyncio.run_coroutine_threadsafe(_asked(engine, method, args, kwargs), loop)
        waiting = asyncio.wrap_future(call)
        try:
            while not (await asyncio.wait({waiting}, timeout=POLL_S))[0]:
                if await request.is_disconnected():
                    return _refused(ConnectionError("the caller has disconnected"), 499)
            return Response(waiting.result(), media_type=BYTES)
        except Exception as error:  # noqa: BLE001 - the caller handles it
            return _failed(error)
        finally:
            waiting.cancel()

    def add(app: FastAPI) -> None:
        index = {"name": "index", "in": "path", "required": True, "schema": {"enum": list(range(len(engines)))}}
        for method in METHODS:
            said = described_by(inlined(described_call(method)), _STATUSES) | {"parameters": [index]}
            app.post(f"{PATH}/{{index}}/{method}", openapi_extra=said)(_route(ask, method))

    return add


def _route(ask: Callable[[str, Request], Awaitable[Response]], method: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await ask(method, request)

    answer.__name__ = answer.__qualname__ = method
    answer.__doc__ = f"Call `{method}` of an engine."
    return answer


async def _asked(engine: InferenceModel, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    value = getattr(engine, method)(*args, **kwargs)
    if inspect.isawaitable(value):
        value = await value
    return result_bytes(engine.model_version, value)


def _failed(error: Exception) -> Response:
    """Return the answer for what an engine raised."""
    if isinstance(error, (DataError, *_OF_ARGUMENTS)):
        return _refused(error, 400)
    said = http_error(error)
    return _refused(error if isinstance(error, TrinityError) else RuntimeError(str(said)), said.status)


def _refused(error: BaseException, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"failure": failure_of(error)}, status, headers)
