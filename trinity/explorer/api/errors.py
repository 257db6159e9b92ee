"""Answers of the endpoint that are errors, in the form of each interface."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from trinity.common.errors import DeadlineError, EngineError, EnvironmentProblem, NotAvailableError, TrinityError
from trinity.utils.log import get_logger

logger = get_logger("explorer")

MESSAGES_PATH = "/v1/messages"
CLIENT_GONE = 499
# An argument out of range, an image that cannot be read or is not in its place, and one for a model that reads none.
_OF_REQUEST = ("E5602", "E4031", "E4032", "E5613", "E5614")
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


class BadRequestError(ValueError):
    """A request that cannot be answered as it is.

    Args:
        message: what is wrong, and the way out.
        param: the field.
        code: `invalid_value` or a more exact word of the interface.
        status: 400, or 422 where the request is right and its answer is not what it asks for.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class HTTPError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: what is wrong, and the way out.
        kind: type of the error in the OpenAI interface.
        param: the field of the request.
        code: a more exact word.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code, self.headers = status, kind, param, code, headers

    def body(self, path: str) -> dict[str, Any]:
        """Return the error as the interface of a path has it."""
        if path.startswith(MESSAGES_PATH):
            kind = _ANTHROPIC_KINDS.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
            return {"type": "error", "error": {"type": kind, "message": str(self)}}
        return error_body(str(self), kind=self.kind, param=self.param, code=self.code)

    def response(self, path: str) -> JSONResponse:
        """Return the answer to a request of a path."""
        return JSONResponse(self.body(path), self.status, self.headers)


def error_body(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error as the OpenAI interface has it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def http_error(error: Exception) -> HTTPError:
    """Return the answer for any error of a request."""
    if isinstance(error, HTTPError):
        return error
    text = str(error)
    if isinstance(error, BadRequestError):
        kind = "invalid_request_error" if error.status == 400 else "unmet_request_error"
        return HTTPError(error.status, text, kind=kind, param=error.param, code=error.code)
    if not isinstance(error, TrinityError):
        logger.error("a request to the endpoint failed", exc_info=error)
        return HTTPError(500, f"{type(error).__name__}; see the log of the run", kind="server_error")
    if error.code == "E5608":
        return HTTPError(400, text, code="context_length_exceeded")
    if error.code in _OF_REQUEST or isinstance(error, NotAvailableError | EnvironmentProblem):
        return HTTPError(400, text, code=error.code)
    if isinstance(error, DeadlineError):
        return HTTPError(504, text, kind="timeout_error", code=error.code)
    logger.warning("a request to the endpoint failed: %s", text)
    return HTTPError(503 if isinstance(error, EngineError) else 500, text, kind="server_error", code=error.code)


async def said_error(request: Request, error: Exception) -> Response:
    """Return the answer for an error that a route raised."""
    return http_error(error).response(request.url.path)


async def said_unknown(request: Request, error: Exception) -> Response:
    """Return the answer for a path or a method that does not exist."""
    status = getattr(error, "status_code", 404)
    text = f"there is no {request.method} {request.url.path} here"
    made = HTTPError(status, text, code="unknown_url", headers=getattr(error, "headers", None))
    return made.response(request.url.path)
