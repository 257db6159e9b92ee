"""The application of the endpoint: its routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from trinity.explorer.api.calls import ModelOf, Served
from trinity.explorer.api.errors import HTTPError, said_error, said_unknown
from trinity.explorer.api.gate import Guard
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.api.metrics import CONTENT_TYPE
from trinity.explorer.api.requests import BadRequestError, ChatRequest, CompletionRequest, read
from trinity.explorer.api.responses import CompletionForm
from trinity.explorer.api.service import Form, Service

__all__ = ["EndpointLimits", "ModelOf", "Served", "create_app", "described"]

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


def create_app(
    model_of: ModelOf,
    limits: EndpointLimits | None = None,
    *,
    problem: Callable[[], str | None] | None = None,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """Return the application.

    `app.state.service` is the `Service` that further routes share.

    Args:
        model_of: who answers.
        limits: what is taken.
        problem: why nothing can be answered now, which `/health` says; None, also as what it returns: nothing.
        hosts: names of this machine by which it may be asked; None: any.
    """
    service = Service(model_of, limits or EndpointLimits())
    app = FastAPI(title="Trinity", docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Guard, hosts=hosts, headers=service.limits.headers)
    app.add_exception_handler(HTTPError, said_error)
    app.add_exception_handler(BadRequestError, said_error)
    for status in (404, 405):
        app.add_exception_handler(status, said_unknown)
    for router in (_state_routes(service, problem), _completion_routes(service)):
        app.include_router(router)
    return app


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


def _state_routes(service: Service, problem: Callable[[], str | None] | None) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        """Answer without a token."""
        said = None if problem is None else problem()
        return JSONResponse({"status": said or "ok"}, 200 if said is None else 503)

    @router.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """List the model of the token."""
        model = service.model(request)
        entry = {"id": model.model_name, "object": "model", "owned_by": "trinity", "max_model_len": model.max_model_len}
        return {"object": "list", "data": [entry]}

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Return what was counted, in the form of Prometheus."""
        service.model(request)
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    return router


def _completion_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=described(ChatRequest))
    async def chat(request: Request) -> Response:
        """Answer a conversation."""

        def form(body: bytes, model: Served) -> Form:
            return CompletionForm(read(ChatRequest, body), model, path=request.url.path)

        return await service.answer(request, form)

    @router.post("/v1/completions", openapi_extra=described(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue texts."""

        def form(body: bytes, model: Served) -> Form:
            return CompletionForm(read(CompletionRequest, body), model, path=request.url.path)

        return await service.answer(request, form)

    return router
