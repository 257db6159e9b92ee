"""What the endpoint counts, in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from trinity.common.experience import Experience

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class EndpointMetrics:
    """Counters of one endpoint; it alone writes them, on its event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "trinity_requests", "Requests that were answered.", ("route", "status"), registry=self.registry
        )
        self.refused = Counter(
            "trinity_refused_requests", "Requests that were answered with 429.", registry=self.registry
        )
        self.gone = Counter(
            "trinity_cancelled_requests", "Requests whose client has disconnected.", registry=self.registry
        )
        self.under_way = Gauge("trinity_requests_under_way", "Requests under way.", registry=self.registry)
        self.prompt_tokens = Counter("trinity_prompt_tokens", "Tokens of prompts.", registry=self.registry)
        self.response_tokens = Counter("trinity_response_tokens", "Sampled tokens.", registry=self.registry)
        self.seconds = Histogram(
            "trinity_request_seconds",
            "Seconds until a request was answered.",
            ("route",),
            buckets=_BOUNDS_S,
            registry=self.registry,
        )

    def count(self, experiences: Sequence[Experience]) -> None:
        """Count the tokens of an answer; a prompt once per sample."""
        self.prompt_tokens.inc(sum(exp.prompt_length for exp in experiences))
        self.response_tokens.inc(sum(len(exp.tokens) - exp.prompt_length for exp in experiences))

    def text(self) -> bytes:
        """Return all of it."""
        return generate_latest(self.registry)
