"""Ctrl-C and SIGTERM: the first asks the run to stop, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from trinity.common.errors import ExitCode
from trinity.utils.log import get_logger

logger = get_logger("launch")

SHUTDOWN_GRACE_S = 60.0
LEAVE_S = 5.0
"""Longest time of what is done before the process is left at once: a disk may not answer."""
_EXIT_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


class StopSignal:
    """Context in which Ctrl-C and SIGTERM ask for a stop instead of raising.

    The first signal sets `code` and calls what was given to `on_stop`; the run then ends its step, saves and
    returns. A second signal, or `grace_s` without an end, leaves the process at once: what was committed stays valid.

    Args:
        grace_s: seconds between the first signal and the forced end.

    Attributes:
        code: exit code of the first signal; None before it.
        before_leaving: called before the process is left at once.
    """

    def __init__(self, grace_s: float = SHUTDOWN_GRACE_S) -> None:
        self.grace_s = grace_s
        self.code: ExitCode | None = None
        self.before_leaving: Callable[[], None] | None = None
        self._callback: Callable[[], None] | None = None
        self._old: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def on_stop(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` when a stop is asked for; at once if it was already."""
        self._callback = callback
        if self.code is not None and callback is not None:
            callback()

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in _EXIT_CODES:
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        # After a stop the process ends: a second signal on the way out must end it too, not raise KeyboardInterrupt.
        for number, handler in self._old.items() if self.code is None else ():
            signal.signal(number, handler)
        if self._timer is not None:
            self._timer.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        code = _EXIT_CODES[signal.Signals(number)]
        if self.code is not None:
            self._leave(code)
        self.code = code
        logger.warning(
            "%s: ending the current step, then stopping (at most %.0f s; send it again to stop now)",
            signal.Signals(number).name,
            self.grace_s,
        )
        self._timer = threading.Timer(self.grace_s, self._leave, args=(code,))
        self._timer.daemon = True
        self._timer.start()
        if self._callback is not None:
            self._callback()

    def _leave(self, code: ExitCode) -> None:
        if self.before_leaving is not None:
            last = threading.Thread(target=self.before_leaving, daemon=True)
            last.start()
            last.join(LEAVE_S)
        os._exit(code)
