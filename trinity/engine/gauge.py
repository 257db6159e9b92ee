"""How one engine answers now: what its last requests took, what waits, and how old its weights are."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

NUM_LAST = 100
"""Requests that the figures are of: few enough to show what has changed, and nobody has to set them back."""

NOW = ("latency_s", "queue", "model_version", "weight_age_s")
"""Names of the gauge's figures; they say what is, so that they are no totals and cannot be added up."""


class RequestGauge:
    """Watches the requests of an engine, which may come from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._load = 0
        self._last: deque[tuple[float, int]] = deque(maxlen=NUM_LAST)
        self._since = time.monotonic()

    @contextmanager
    def request(self, samples: int) -> Iterator[None]:
        """Watch a request for `samples` samples; one that fails is in no figure."""
        with self._lock:
            self._load += samples
            load = self._load
        started = time.monotonic()
        try:
            yield
            self._last.append((time.monotonic() - started, load))
        finally:
            with self._lock:
                self._load -= samples

    def note_weights(self) -> None:
        """Note that the engine has taken new weights."""
        self._since = time.monotonic()

    def table(self, *, version: int, num_slots: int) -> dict[str, float]:
        """Return the figures; those of requests are there once one was answered.

        `latency_s` is the mean of the last `NUM_LAST` requests, `queue` the most samples that waited for a slot when
        one of them came, `weight_age_s` the seconds since the weights, of `model_version`, were taken.

        Args:
            version: of the weights.
            num_slots: samples that the engine makes at once.
        """
        now = {"model_version": float(version), "weight_age_s": time.monotonic() - self._since}
        last = list(self._last)
        if last:
            now["latency_s"] = sum(seconds for seconds, _ in last) / len(last)
            now["queue"] = float(max(0, max(load for _, load in last) - num_slots))
        return now
