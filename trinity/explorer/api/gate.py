"""How many requests the endpoint takes, of what size, and from whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import Request

from trinity.explorer.api.errors import HTTPError
from trinity.explorer.api.limits import REQUESTS_KEY, EndpointLimits
from trinity.utils.deadline import within

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from trinity.explorer.api.metrics import EndpointMetrics


class Gate:
    """Counts the requests under way, and refuses those that are too many."""

    def __init__(self, limits: EndpointLimits, metrics: EndpointMetrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.under_way = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a request.

        Raises:
            HTTPError: there are as many as may be (429).
        """
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Count a request until `leave`; raises as `entered`."""
        limits = self.limits
        if self.under_way >= limits.requests:
            self.metrics.refused.inc()
            raise HTTPError(
                429,
                f"{limits.requests} requests are under way ({REQUESTS_KEY}); ask again in {limits.retry_after_s} s",
                kind="rate_limit_error",
                code="overloaded",
                headers={"Retry-After": str(limits.retry_after_s)},
            )
        self.under_way += 1
        self.metrics.under_way.set(self.under_way)

    def leave(self) -> None:
        """Count a request no more."""
        self.under_way -= 1
        self.metrics.under_way.set(self.under_way)

    async def body(self, request: Request, *, most: int | None = None) -> bytes:
        """Return the body of a request.

        Args:
            request: as it came.
            most: bytes that it may have; None: as the limits say.

        Raises:
            HTTPError: it is too large (413), or does not arrive (408).
        """
        try:
            return await within(self._body(request, most or self.limits.body_bytes), self.limits.receive_s)
        except TimeoutError as error:
            raise HTTPError(
                408, f"the request has not arrived within {self.limits.receive_s:g} s", kind="timeout_error",
                code="request_timeout", headers={"Connection": "close"},
            ) from error  # fmt: skip

    async def _body(self, request: Request, most: int) -> bytes:
        announced = request.headers.get("content-length", "0")
        found = bytearray()
        if not announced.isdecimal() or len(announced) > 18 or int(announced) > most:
            raise _too_large(most)
        async for chunk in request.stream():
            found += chunk
            if len(found) > most:
                raise _too_large(most)
        return bytes(found)


def _too_large(most: int) -> HTTPError:
    # The rest is not read.
    headers = {"Connection": "close"}
    return HTTPError(413, f"the body has more than {most} bytes", code="request_too_large", headers=headers)


class Guard:
    """Refuses requests of foreign pages, and those with too many headers.

    A web page can make a browser send requests to this machine, also under a domain name of the page that resolves to
    it. So a request must name this machine by a known name, and must not come from a page of another host.

    Args:
        app: what is guarded.
        hosts: names of this machine; None: any.
        headers: most headers of a request.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] | None, headers: int) -> None:
        self._app, self._hosts, self._headers = app, hosts, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 403 or 431."""
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error.response(scope["path"])(scope, receive, send)

    def _refusal(self, scope: Scope) -> HTTPError | None:
        given = scope["headers"]
        if len(given) > self._headers:
            text = f"a request may have {self._headers} headers, got {len(given)}"
            return HTTPError(431, text, code="too_many_headers")
        headers = {name: value.decode("latin-1") for name, value in given if name in (b"host", b"origin")}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self._hosts is not None and _name("//" + host) not in self._hosts:
            return HTTPError(403, f"{host[:200]!r} is not a name of this server", kind="permission_error", code="host")
        if origin is not None and _parts_of(origin)[1] != host:
            return HTTPError(
                403, f"a page of {origin[:200]!r} may not ask here", kind="permission_error", code="origin"
            )
        return None


def _parts_of(url: str) -> tuple[str, str]:
    """Return scheme and host of an address; empty if it is none."""
    try:
        found = urlsplit(url)
    except ValueError:
        return "", ""
    return found.scheme, found.netloc


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def closing_protocol(receive_s: float) -> Any:
    """Return uvicorn's protocol, which here ends connections without requests.

    Args:
        receive_s: longest time to the end of the headers of a request, and half of the longest pause between two.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ClosingProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            asyncio.get_running_loop().call_later(receive_s, self._end_if_idle, None)

        def _end_if_idle(self, before: Any) -> None:
            """End the connection if no request has come since the last look."""
            if self.transport.is_closing():
                return
            if self.cycle is before and (before is None or before.response_complete):
                self.transport.close()
                return
            asyncio.get_running_loop().call_later(receive_s, self._end_if_idle, self.cycle)

    return ClosingProtocol
