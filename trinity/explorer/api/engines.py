"""Routes by which distant workflows ask engines for exact tokens."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from trinity.common.models.inference_model import InferenceModel
from trinity.explorer.api.errors import HTTPError
from trinity.explorer.api.service import Service
from trinity.explorer.isolation.requested import PATH
from trinity.explorer.isolation.wire import METHODS, call_of, failure_of, result_bytes
from trinity.utils.token import is_token

POLL_S = 0.5
BYTES = "application/octet-stream"
MAX_BODY_BYTES = 64 * 1024 * 1024
"""A call has a conversation with its images, and the tokens of its beginning."""


def engine_routes(
    engines: Sequence[InferenceModel], key: str, loop: asyncio.AbstractEventLoop
) -> Callable[[FastAPI], None]:
    """Return what adds the routes to an application.

    Args:
        engines: of the rollout model and the auxiliary ones.
        key: that callers show.
        loop: on which the engines are asked.
    """

    async def ask(index: int, method: str, request: Request) -> Response:
        """Call a method of an engine."""
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not is_token(shown, key):
            return _refused(PermissionError("the key is not that of this inference model"), 401)
        if method not in METHODS or not 0 <= index < len(engines):
            return _refused(LookupError(f"there is no method {method} of an engine {index} here"), 404)
        service: Service = request.app.state.service
        try:
            args, kwargs = call_of(await service.gate.body(request, most=MAX_BODY_BYTES))
        except HTTPError as error:
            return _refused(ValueError(str(error)), error.status, error.headers)
        except ValueError as error:
            return _refused(error, 400)
        call = asyncio.run_coroutine_threadsafe(_asked(engines[index], method, args, kwargs), loop)
        waiting = asyncio.wrap_future(call)
        try:
            while not (await asyncio.wait({waiting}, timeout=POLL_S))[0]:
                if await request.is_disconnected():
                    return _refused(ConnectionError("the caller has disconnected"), 499)
            return Response(waiting.result(), media_type=BYTES)
        except Exception as error:  # noqa: BLE001 - the caller handles it
            return _refused(error, 500)
        finally:
            waiting.cancel()

    def add(app: FastAPI) -> None:
        app.post(PATH + "/{index}/{method}")(ask)

    return add


async def _asked(engine: InferenceModel, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    value = getattr(engine, method)(*args, **kwargs)
    if inspect.isawaitable(value):
        value = await value
    return result_bytes(engine.model_version, value)


def _refused(error: BaseException, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"failure": failure_of(error)}, status, headers)
