"""The limits of the endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinity.common.config import Config

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
REQUESTS_KEY = "explorer.api_max_requests"


@dataclass(frozen=True)
class EndpointLimits:
    """What the endpoint takes.

    Attributes:
        body_bytes: most bytes of a request.
        requests: most requests under way; further ones are answered with 429.
        retry_after_s: when to ask again after a 429.
        receive_s: longest time for a request to arrive, and for a client to take a part of a stream.
        headers: most headers of a request.
        timeout_s: longest time of an answer; None: as the model has it.
    """

    body_bytes: int = 16 * 1024 * 1024
    requests: int = 1024
    retry_after_s: int = 1
    receive_s: float = 30.0
    headers: int = 128
    timeout_s: float | None = None

    @classmethod
    def of(cls, config: Config) -> EndpointLimits:
        """Return the limits that a configuration sets."""
        return cls(requests=config.explorer.api_max_requests)
