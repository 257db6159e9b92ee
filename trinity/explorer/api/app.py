"""The routes of the endpoint: who asks is a model with its own history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from trinity.common.errors import DeadlineError, EngineError, EnvironmentProblem, NotAvailableError, TrinityError
from trinity.common.experience import Experience
from trinity.explorer.api.requests import BadRequestError, ChatRequest, CompletionRequest, read
from trinity.explorer.api.responses import Answer, error_body
from trinity.utils.log import get_logger

logger = get_logger("explorer")

POLL_S = 0.5


class Served(Protocol):
    """A model that answers; see `ModelWrapper`."""

    @property
    def model_name(self) -> str:
        """Name of the model."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer."""

    def submit(self, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a call on the model's event loop."""

    async def chat_async(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[Experience]:
        """Return `n` answers to a conversation."""

    async def generate_async(self, prompts: Any, **kwargs: Any) -> list[Experience]:
        """Return `n` samples of each prompt."""

    def words(self) -> dict[int, str]:
        """Return the text of each token id."""


ModelOf = Callable[[str, Mapping[str, str]], Served | None]
"""The model that a token gives access to, with the headers of the call.

None for an unknown token. `BadRequestError` for headers that cannot be taken.
"""


@dataclass(frozen=True)
class EndpointLimits:
    """What the endpoint takes.

    Attributes:
        body_bytes: most bytes of a request.
        requests: most requests under way; further ones are answered with 429.
        retry_after_s: when to ask again after a 429.
    """

    body_bytes: int = 16 * 1024 * 1024
    requests: int = 1024
    retry_after_s: int = 1


class _HTTPError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        super().__init__(body["error"]["message"])
        self.response = JSONResponse(body, status, headers)


def create_app(
    model_of: ModelOf, limits: EndpointLimits | None = None, *, problem: Callable[[], str | None] | None = None
) -> FastAPI:
    """Return the application.

    Args:
        model_of: who answers.
        limits: what is taken.
        problem: why nothing can be answered now, which `/health` says; None, also as what it returns: nothing.
    """
    limits = limits or EndpointLimits()
    app = FastAPI(title="Trinity", docs_url=None, redoc_url=None)
    under_way = [0]

    @app.exception_handler(_HTTPError)
    async def _said(_: Request, error: Exception) -> Response:
        assert isinstance(error, _HTTPError), "the handler of this class"
        return error.response

    @app.exception_handler(404)
    async def _unknown(request: Request, _: Exception) -> Response:
        text = f"there is no {request.method} {request.url.path} here"
        return JSONResponse(error_body(text, kind="invalid_request_error", code="unknown_url"), 404)

    @app.get("/health")
    async def health() -> Response:
        """Answer without a token."""
        said = None if problem is None else problem()
        return JSONResponse({"status": said or "ok"}, 200 if said is None else 503)

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """List the model of the token."""
        model = _model(request, model_of)
        entry = {"id": model.model_name, "object": "model", "owned_by": "trinity", "max_model_len": model.max_model_len}
        return {"object": "list", "data": [entry]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        return await _answer(request, ChatRequest, model_of=model_of, limits=limits, under_way=under_way)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Continue texts."""
        return await _answer(request, CompletionRequest, model_of=model_of, limits=limits, under_way=under_way)

    return app


def _model(request: Request, model_of: ModelOf) -> Served:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    try:
        model = model_of(token.strip(), request.headers) if scheme.lower() == "bearer" else None
    except BadRequestError as error:
        said = error_body(str(error), kind="invalid_request_error", param=error.param, code=error.code)
        raise _HTTPError(400, said) from error
    if model is None:
        text = (
            "the token is missing, unknown, or of a rollout that has ended; send `Authorization: Bearer <token>` with "
            "the api_key of the client that get_openai_client returns"
        )
        raise _HTTPError(401, error_body(text, kind="authentication_error", code="invalid_api_key"))
    return model


async def _answer(
    request: Request,
    kind: type[ChatRequest] | type[CompletionRequest],
    *,
    model_of: ModelOf,
    limits: EndpointLimits,
    under_way: list[int],
) -> Response:
    model = _model(request, model_of)
    if under_way[0] >= limits.requests:
        text = f"{limits.requests} requests are under way; ask again in {limits.retry_after_s} s"
        said = error_body(text, kind="rate_limit_error", code="overloaded")
        raise _HTTPError(429, said, {"Retry-After": str(limits.retry_after_s)})
    under_way[0] += 1
    try:
        body = await _body(request, limits.body_bytes)
        asked = read(kind, body)
        experiences = await _unless_gone(request, model.submit(_call(model, asked)))
        answer = _made(model, asked, experiences)
    except BadRequestError as error:
        said = error_body(str(error), kind="invalid_request_error", param=error.param, code=error.code)
        raise _HTTPError(400, said) from error
    except TrinityError as error:
        raise _of_engine(error) from error
    finally:
        under_way[0] -= 1
    if not asked.stream:
        return JSONResponse(answer.whole())
    with_usage = asked.stream_options is not None and asked.stream_options.include_usage
    return StreamingResponse(_events(answer, with_usage=with_usage), media_type="text/event-stream")


def _call(model: Served, asked: ChatRequest | CompletionRequest) -> Coroutine[Any, Any, list[Experience]]:
    arguments = asked.arguments(model.max_model_len)
    if isinstance(asked, ChatRequest):
        return model.chat_async(asked.messages, **arguments)
    return model.generate_async(asked.prompts, **arguments)


def _made(model: Served, asked: ChatRequest | CompletionRequest, experiences: list[Experience]) -> Answer:
    if any(exp.truncate_status == "prompt_truncated" for exp in experiences):
        raise BadRequestError(
            "the prompt is longer than model.max_prompt_tokens; shorten the conversation or raise it",
            param="messages", code="context_length_exceeded",
        )  # fmt: skip
    is_chat = isinstance(asked, ChatRequest)
    wants_logprobs = bool(asked.logprobs) if is_chat else asked.logprobs is not None
    return Answer(
        experiences,
        model=model.model_name,
        is_chat=is_chat,
        words=model.words() if wants_logprobs else None,
        with_ids=bool(asked.return_token_ids),
    )


async def _body(request: Request, most: int) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            text = f"the body has more than {most} bytes"
            raise _HTTPError(413, error_body(text, kind="invalid_request_error", code="request_too_large"))
    return bytes(found)


async def _unless_gone(request: Request, call: Future[Any]) -> Any:
    """Wait for a call; cancel it when nobody waits for its answer any more."""
    waiting = asyncio.wrap_future(call)
    try:
        while not (await asyncio.wait({waiting}, timeout=POLL_S))[0]:
            if await request.is_disconnected():
                raise _HTTPError(499, error_body("the client has gone", kind="client_error"))
        return waiting.result()
    finally:
        waiting.cancel()


def _of_engine(error: TrinityError) -> _HTTPError:
    """Return the answer for an error of the engine."""
    text = str(error)
    if error.code == "E5608":
        return _HTTPError(400, error_body(text, kind="invalid_request_error", code="context_length_exceeded"))
    if error.code == "E5602" or isinstance(error, NotAvailableError | EnvironmentProblem):
        return _HTTPError(400, error_body(text, kind="invalid_request_error", code=error.code))
    if isinstance(error, DeadlineError):
        return _HTTPError(504, error_body(text, kind="timeout_error", code=error.code))
    status = 503 if isinstance(error, EngineError) else 500
    logger.warning("a request to the OpenAI-compatible endpoint failed: %s", text)
    return _HTTPError(status, error_body(text, kind="server_error", code=error.code))


async def _events(answer: Answer, *, with_usage: bool) -> AsyncIterator[str]:
    for event in answer.stream(with_usage=with_usage):
        yield event
