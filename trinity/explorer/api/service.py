"""What all routes share: who asks, how much, and how errors are said."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from trinity.common.experience import Experience
from trinity.explorer.api.calls import Asked, ModelOf, RunningCall, Served
from trinity.explorer.api.errors import CLIENT_GONE, BadRequestError, HTTPError, http_error
from trinity.explorer.api.gate import Gate
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.api.metrics import EndpointMetrics
from trinity.explorer.api.streaming import AnswerPart, parts
from trinity.utils.deadline import within

EVENTS = "text/event-stream"


class Form(Protocol):
    """The form that an interface gives an answer."""

    @property
    def asked(self) -> Asked:
        """What the model is asked."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in parts."""

    def whole(self, experiences: Sequence[Experience], call_id: str) -> dict[str, Any]:
        """Return the answer as one object."""

    def events(self, parts: AsyncIterator[AnswerPart], running: RunningCall) -> AsyncIterator[str]:
        """Yield the answer as events."""

    def error(self, error: HTTPError) -> str:
        """Return an error as an event."""


class Service:
    """Answers the requests of all interfaces.

    Args:
        model_of: who answers.
        limits: what is taken.
    """

    def __init__(self, model_of: ModelOf, limits: EndpointLimits) -> None:
        self.limits, self.metrics = limits, EndpointMetrics()
        self.gate = Gate(limits, self.metrics)
        self._model_of = model_of

    def model(self, request: Request) -> Served:
        """Return the model of who asks.

        Raises:
            HTTPError: the token is missing or wrong (401).
            BadRequestError: the headers cannot be taken.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.headers.get("x-api-key", "")
        model = self._model_of(token.strip(), request.headers) if token.strip() else None
        if model is None:
            raise HTTPError(
                401,
                "the token is missing, unknown, or of a rollout that has ended; send `Authorization: Bearer <token>`, "
                "or `x-api-key: <token>`, with the api_key of the client that get_openai_client returns",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return model

    async def answer(self, request: Request, form_of: Callable[[bytes, Served], Form]) -> Response:
        """Return the answer to a request, whole or as a stream.

        Args:
            request: as it came.
            form_of: reads its body.
        """
        route, started = request.url.path, time.monotonic()
        try:
            response = await self._answered(request, form_of)
        except Exception as error:  # noqa: BLE001 - who asks gets it, in the form of the interface
            said = http_error(error)
            if said.status == CLIENT_GONE:
                self.metrics.gone.inc()
            response = said.response(route)
        self.metrics.requests.labels(route, response.status_code).inc()
        self.metrics.seconds.labels(route).observe(time.monotonic() - started)
        return response

    async def _answered(self, request: Request, form_of: Callable[[bytes, Served], Form]) -> Response:
        model = self.model(request)
        self.gate.enter()
        is_handed_over = False
        try:
            form = form_of(await self.gate.body(request), model)
            _check_name(form.asked.model, model)
            running = RunningCall(request, model, form.asked, timeout_s=self.limits.timeout_s)
            if not form.is_stream:
                experiences = await running.result()
                self.metrics.count(experiences)
                return JSONResponse(form.whole(experiences, running.call_id))
            try:
                told = self._counted(parts(running))
                first = await anext(told)  # what fails before it has a status
            except BaseException:
                running.give_up()
                raise
            is_handed_over = True
            return _Events(self._said(form, running, _chained(first, told)), running, self.gate)
        finally:
            if not is_handed_over:
                self.gate.leave()

    async def _counted(self, told: AsyncIterator[AnswerPart]) -> AsyncIterator[AnswerPart]:
        async for part in told:
            if part.final is not None:
                self.metrics.count([part.final])
            yield part

    async def _said(self, form: Form, running: RunningCall, told: AsyncIterator[AnswerPart]) -> AsyncIterator[str]:
        try:
            async for event in form.events(told, running):
                yield event
        except Exception as error:  # noqa: BLE001 - who asks gets it, in the form of the interface
            said = http_error(error)
            if said.status == CLIENT_GONE:
                self.metrics.gone.inc()
            yield form.error(said)


def _check_name(asked: str | None, model: Served) -> None:
    """Refuse the name of another model.

    Raises:
        BadRequestError: it is none of this one.
    """
    if asked is not None and asked not in model.model_names:
        raise BadRequestError(
            f"there is no model {asked[:200]!r} here; ask for {' or '.join(map(repr, model.model_names))}, or leave "
            "`model` out; explorer.rollout_model.name gives the rollout model another name",
            param="model",
            code="model_not_found",
        )


class _Events(StreamingResponse):
    """A stream of events; its end, whatever it is, ends the call.

    A client that does not read is one that has disconnected.
    """

    def __init__(self, events: AsyncIterator[str], running: RunningCall, gate: Gate) -> None:
        super().__init__(events, media_type=EVENTS, headers={"Cache-Control": "no-store"})
        self._running, self._gate = running, gate

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            await within(send(message), self._gate.limits.receive_s)

        try:
            await super().__call__(scope, receive, sent)
        except* TimeoutError:
            self._gate.metrics.gone.inc()
        finally:
            self._running.give_up()
            self._gate.leave()


async def _chained(first: AnswerPart, rest: AsyncIterator[AnswerPart]) -> AsyncIterator[AnswerPart]:
    yield first
    async for part in rest:
        yield part
