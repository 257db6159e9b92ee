"""The application of the endpoint: its routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from trinity.explorer.api.calls import ModelOf, Served
from trinity.explorer.api.descriptions import described
from trinity.explorer.api.errors import HTTPError, said_error, said_unknown
from trinity.explorer.api.gate import Guard
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.api.messages import message_routes
from trinity.explorer.api.metrics import CONTENT_TYPE
from trinity.explorer.api.requests import BadRequestError, ChatRequest, CompletionRequest, read
from trinity.explorer.api.responses import CompletionForm
from trinity.explorer.api.responses_api import response_routes
from trinity.explorer.api.service import Form, Service

__all__ = ["EndpointLimits", "ModelOf", "Served", "create_app"]


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
    routers = (_state_routes(service, problem), _completion_routes(service))
    for router in (*routers, response_routes(service), message_routes(service)):
        app.include_router(router)
    return app


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
