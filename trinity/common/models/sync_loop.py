"""The event loop of model calls that are made without a running loop."""

from __future__ import annotations

import asyncio
import threading


class SyncLoop:
    """An event loop in its own thread, for calls made without a running loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop; the first call starts it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="model-sync", daemon=True).start()
            return self._loop


sync_loop = SyncLoop()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
