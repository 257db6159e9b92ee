"""A monitor in its own thread.

A server that is down or hangs does not delay the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from trinity.monitor.backend import MonitorBackend

START_S = 20.0  # from then on a line says that the monitor has not started
CLOSE_S = 10.0  # what was not sent by then is left
MAX_WAITING = 10_000

Call = Callable[[MonitorBackend], None]


class BackgroundBackend:
    """Starts, calls and closes one backend in a daemon thread, in order.

    Args:
        make: returns the backend; may block and may raise.
        name: how messages call it.
        guarded: runs a call of the backend and reports its failure.
        logger: for what a deadline ends.
    """

    def __init__(
        self,
        make: Callable[[], MonitorBackend],
        *,
        name: str,
        guarded: Callable[[str, Callable[[], None]], None],
        logger: logging.Logger,
    ) -> None:
        self._make = make
        self._name = name
        self._guarded = guarded
        self._logger = logger
        self._backend: MonitorBackend | None = None
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._is_begun = threading.Event()  # the start is over, well or not
        self._deadline = time.monotonic() + START_S
        self._alarm = threading.Timer(START_S, self._tell_slow_start)
        self._alarm.daemon = True
        self._alarm.start()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, action: Call) -> None:
        """Queue `action` for the thread, which calls it with the backend.

        Actions run in the order they were queued. This never waits.

        Raises:
            BufferError: more calls wait than may.
        """
        if self._is_begun.is_set() and self._backend is None:
            return  # its start failed, and was reported
        if self._calls.qsize() >= MAX_WAITING:
            raise BufferError(f"{MAX_WAITING} calls wait for {self._name}, which does not answer; this one is left out")
        self._calls.put(action)

    def close(self) -> None:
        """Send queued actions and close the backend.

        What is left after `CLOSE_S` seconds is dropped.
        """
        self._calls.put(None)
        if self._is_begun.wait(max(0.0, self._deadline - time.monotonic())):
            self._thread.join(CLOSE_S)
        self._alarm.cancel()
        if self._thread.is_alive():
            self._logger.warning(
                "%s does not answer: the run ends without it, %d calls were not sent; metrics.jsonl has every metric",
                self._name,
                max(0, self._calls.qsize() - 1),
            )

    def _work(self) -> None:
        self._guarded(f"the start of {self._name}", self._start)
        self._is_begun.set()
        self._alarm.cancel()
        backend = self._backend
        while backend is not None:
            action = self._calls.get()
            if action is None:
                self._guarded(self._name, backend.close)
                return
            self._guarded(self._name, lambda action=action: action(backend))  # type: ignore[misc]

    def _start(self) -> None:
        self._backend = self._make()

    def _tell_slow_start(self) -> None:
        self._logger.warning(
            "%s has not answered for %g s; the run continues without waiting for it, and metrics.jsonl has every "
            "metric",
            self._name,
            START_S,
        )
