"""Wall time of a block of code, as a metric."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from types import TracebackType


class Timer:
    """Context that writes its wall time in seconds into metrics.

    Args:
        metrics_dict: the metrics.
        key_name: name of the time in them.
    """

    def __init__(self, metrics_dict: MutableMapping[str, float], key_name: str) -> None:
        self.metrics = metrics_dict
        self.key_name = key_name
        self._begun = 0.0

    def __enter__(self) -> Timer:
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.metrics[self.key_name] = time.perf_counter() - self._begun
