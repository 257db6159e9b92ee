"""The end of the process: not later because user code left threads behind."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn

EXIT_HANDLERS_S = 10.0
SIGNALLED = 128  # exit statuses from here on say that a signal ended the process

left_behind: list[object] = []
"""Calls that ignored their cancellation; collecting one would run its code once more, perhaps for ever."""


def leave(status: int) -> NoReturn:
    """End the process with `status`.

    The interpreter joins every thread that is no daemon, without a deadline. Where such threads or asynchronous calls
    are left, the exit handlers run (at most `EXIT_HANDLERS_S` seconds), the output is flushed, and the process ends
    without waiting for them; so it does after a signal, since a second one would find the handlers gone.
    """
    if status < SIGNALLED and not lingering_threads() and not left_behind:
        sys.exit(status)
    handlers = threading.Thread(target=atexit._run_exitfuncs, name="exit-handlers", daemon=True)
    handlers.start()
    handlers.join(EXIT_HANDLERS_S)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def lingering_threads() -> list[threading.Thread]:
    """Return the threads besides this one that the interpreter would wait for."""
    own = {threading.current_thread(), threading.main_thread()}
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in own]
