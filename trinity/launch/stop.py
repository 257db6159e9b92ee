"""Signals of a run: Ctrl-C, SIGTERM and SIGHUP (a closed terminal).

States of a run:

    running --first signal--> stopping --step ended, state saved--> exit
                                 |
                                 +--second signal, or grace_s------> exit at once
                                 (a second SIGHUP is ignored)
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from trinity.common.errors import ExitCode, TrinityError
from trinity.runtime.process_exit import leave_at_once
from trinity.utils.log import get_logger

logger = get_logger("launch")

SHUTDOWN_GRACE_S = 60.0
TOLD_S = 1.0  # waited at most until the log says that a stop was asked for: a reader that does not read holds it up
_EXIT_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,  # the terminal was closed
}


class StopSignal:
    """Context in which Ctrl-C, SIGTERM and SIGHUP request a stop.

    The first signal sets `code` and calls what was given to `on_stop`; the run then ends its step, saves and
    returns. A second signal, or `grace_s` without an end, leaves the process at once: what was committed stays valid.

    Args:
        grace_s: seconds between the first signal and the forced end.
    """

    def __init__(self, grace_s: float = SHUTDOWN_GRACE_S) -> None:
        self.grace_s = grace_s
        self.code: ExitCode | None = None
        self.error: TrinityError | None = None
        self._callback: Callable[[], None] | None = None
        self._old: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._told: threading.Thread | None = None

    def on_stop(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` when a stop is asked for; at once if it was already."""
        self._callback = callback
        if self.code is not None and callback is not None:
            callback()

    def request(self, code: ExitCode) -> None:
        """Ask for a stop, as the first signal does; from any thread."""
        if self.code is None:
            self.code = code
            self._tell()

    def fail(self, error: TrinityError) -> None:
        """Ask for a stop after which the run fails with `error`."""
        self.error = self.error or error
        self.request(error.exit_code)

    def refuse(self) -> None:
        """Raise the error that a stop was asked for with, if any.

        Raises:
            TrinityError: that error.
        """
        if self.error is not None:
            raise self.error

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in _EXIT_CODES:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup: the run is meant to outlive its terminal
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        # After a stop the process ends: a second signal on the way out must end it too, not raise KeyboardInterrupt.
        for number, handler in self._old.items() if self.code is None else ():
            signal.signal(number, handler)
        if self._timer is not None:
            self._timer.cancel()
        if self._told is not None:
            self._told.join(TOLD_S)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        code = _EXIT_CODES[signal.Signals(number)]
        if self.code is not None:
            if number == signal.SIGHUP:
                return  # the shell and the kernel send one each when a terminal is closed
            leave_at_once(code)
        self.code = code
        # In a thread of its own: this one may be in the middle of writing to the very file of the log.
        text = "%s: ending the current step, then stopping (at most %.0f s; send it again to stop now)"
        told = (text, signal.Signals(number).name, self.grace_s)
        self._told = threading.Thread(target=logger.warning, args=told, name="stop-told", daemon=True)
        self._told.start()
        self._timer = threading.Timer(self.grace_s, leave_at_once, args=(int(code),))
        self._timer.daemon = True
        self._timer.start()
        self._tell()

    def _tell(self) -> None:
        if self._callback is not None:
            self._callback()
