"""Current latency, queue and weight age of one engine."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

NUM_LAST = 100
"""Number of last requests in the figures: few enough to show recent changes, so no reset is needed."""

NOW = ("latency_s", "queue", "model_version", "weight_age_s")
"""Names of the gauge's figures. They are current values, not totals, and must not be summed over engines."""


class RequestGauge:
    """Measures the requests of an engine; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._load = 0
        self._last: deque[tuple[float, int]] = deque(maxlen=NUM_LAST)
        self._since = time.monotonic()

    @contextmanager
    def request(self, samples: int) -> Iterator[None]:
        """Measure a request for `samples` samples, unless it fails."""
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
        """Record that the engine has loaded new weights now."""
        self._since = time.monotonic()

    def table(self, *, version: int, num_slots: int) -> dict[str, float]:
        """Return the figures; those of requests only after the first answer.

        `latency_s` is the mean of the last `NUM_LAST` requests, `queue` the most samples that waited for a slot when
        one of them arrived, `weight_age_s` the seconds since the weights, of `model_version`, were loaded.

        Args:
            version: version of the weights.
            num_slots: samples that the engine makes at once.
        """
        now = {"model_version": float(version), "weight_age_s": time.monotonic() - self._since}
        last = list(self._last)
        if last:
            now["latency_s"] = sum(seconds for seconds, _ in last) / len(last)
            now["queue"] = float(max(0, max(load for _, load in last) - num_slots))
        return now
