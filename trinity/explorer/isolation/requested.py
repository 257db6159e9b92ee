"""Engines behind an address, for a workflow in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from trinity.common.errors import EngineError
from trinity.explorer.isolation.wire import call_bytes, error_of, result_of

CONNECT_TIMEOUT_S = 10.0
PATH = "/engines"


class RequestedCalls:
    """Asks engines by HTTP; see `DistantEngine`.

    Args:
        address: `http://host:port`.
        key: that the server asks for.
        timeout_s: longest wait for one call, in seconds.
    """

    def __init__(self, address: str, key: str, *, timeout_s: float) -> None:
        self.address = address
        self._client = httpx.AsyncClient(
            base_url=address,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return version of the weights and result of an engine's method.

        Raises:
            EngineError: the server does not answer (E5640), or the call cannot travel (E5641).
            Exception: what the engine raises.
        """
        assert method == "ask" and not kwargs, "engines are asked, see RunnerPlace.ask"
        engine, asked, given, by_name = args
        return await self._ask(engine, asked, given, by_name)

    async def _ask(self, engine: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Any]:
        body = call_bytes(args, kwargs)
        try:
            answer = await self._client.post(f"{PATH}/{engine}/{method}", content=body)
        except httpx.HTTPError as error:
            raise EngineError(
                f"the inference model at {self.address} does not answer ({type(error).__name__}: {error}); start it "
                "again",
                code="E5640",
            ) from error
        if answer.status_code == httpx.codes.OK:
            return result_of(answer.content)
        try:
            failure = answer.json()["failure"]
        except (ValueError, KeyError, TypeError):
            said = f"the inference model at {self.address} refused a call with status {answer.status_code}"
            raise EngineError(f"{said}: {answer.text[:200]}", code="E5640") from None
        raise error_of(failure)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
