"""HTTP client of an OpenAI-compatible server, with growing retry pauses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx

from trinity.common.errors import EngineError
from trinity.utils.deadline import within
from trinity.utils.log import get_logger, redact

MAX_ATTEMPTS = 6
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
SHOWN_CHARS = 300

logger = get_logger("explorer")


class ExternalClient:
    """Posts JSON to a server from any event loop.

    The caller sets the deadline of a whole call, retries included.

    Args:
        base_url: address up to and including `/v1`.
        api_key: sent as a bearer token; empty sends none.
        where: key of the section, for messages.
        key_name: environment variable of the key, for messages.

    Attributes:
        num_requests: requests sent.
        num_retries: how many of them repeat another.
    """

    def __init__(self, base_url: str, *, api_key: str, where: str, key_name: str) -> None:
        self.base_url = base_url.rstrip("/")
        self.num_requests = 0
        self.num_retries = 0
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._where = where
        self._key_name = key_name
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._is_closed = False

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON answer; retry lost connections, 408, 429 and 5xx.

        The pause before a retry follows `Retry-After`, if given.

        Raises:
            EngineError: the attempts are used up (E5730), the server refused (E5732), it answered no JSON (E5733), or
                the client is closed (E5730).
        """
        growing_s, asked_s, problem = FIRST_PAUSE_S, None, ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                pause_s = growing_s if asked_s is None else asked_s
                logger.info("%s: %s; attempt %d after %.1f s", self._where, problem, attempt + 1, pause_s)
                await asyncio.sleep(pause_s)
                growing_s, asked_s = min(2 * growing_s, LONGEST_PAUSE_S), None
                self.num_retries += 1
            self.num_requests += 1
            try:
                response = await self._client().post(f"{self.base_url}/{path}", json=body)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {redact(str(error)) or 'the connection was lost'}"
                continue
            if response.status_code in (408, 429) or response.status_code >= 500:
                problem = f"status {response.status_code} {_message(response)}".rstrip()
                asked_s = _asked_pause_s(response)
                continue
            return self._read(response, path)
        raise EngineError(
            f"{self._where}: the server {redact(self.base_url)} gave no answer in {MAX_ATTEMPTS} attempts; the last: "
            f"{problem}",
            code="E5730",
        )

    def _read(self, response: httpx.Response, path: str) -> Any:
        if not response.is_success:
            hint = f"; is the key in {self._key_name} right?" if response.status_code in (401, 403) else ""
            raise EngineError(
                f"{self._where}: the server {redact(self.base_url)} refused {path} with status {response.status_code} "
                f"{_message(response)}{hint}",
                code="E5732",
            )
        try:
            return response.json()
        except ValueError as error:
            raise EngineError(
                f"{self._where}: {redact(self.base_url)}/{path} answered no JSON: {_shown(response.text)!r}; the "
                "address must end where /chat/completions follows, usually in /v1",
                code="E5733",
            ) from error

    def _client(self) -> httpx.AsyncClient:
        """Return the client of the running event loop, to which it is bound."""
        if self._is_closed:
            raise EngineError(f"{self._where}: the external model was shut down", code="E5730")
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            # The caller's deadline bounds the whole call; a failing connection is retried earlier.
            timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._clients[loop] = httpx.AsyncClient(headers=self._headers, timeout=timeout, limits=limits)
        return self._clients[loop]

    async def close(self) -> None:
        """Close the connections of all event loops that still run."""
        self._is_closed = True
        here = asyncio.get_running_loop()
        for loop, client in self._clients.items():
            if loop is here:
                await within(client.aclose(), CLOSE_TIMEOUT_S)
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(client.aclose(), loop)
                with contextlib.suppress(TimeoutError):
                    await within(asyncio.wrap_future(closing), CLOSE_TIMEOUT_S)
        self._clients.clear()


def _asked_pause_s(response: httpx.Response) -> float | None:
    """Return the seconds of `Retry-After`, capped, or None if not given so."""
    try:
        return min(max(float(response.headers["retry-after"]), 0.0), LONGEST_PAUSE_S)
    except (KeyError, ValueError):
        return None


def _message(response: httpx.Response) -> str:
    """Return the server's error text, shortened and without secrets."""
    try:
        document = response.json()
        error = document.get("error", document)
        return _shown(str(error.get("message", error) if isinstance(error, dict) else error))
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        return _shown(response.text)


def _shown(text: str) -> str:
    line = " ".join(redact(text).split())
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "..."
