"""The end of the process: not later because user code left threads behind."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

EXIT_HANDLERS_S = 10.0
SIGNALLED = 128  # exit statuses from here on say that a signal ended the process

LAST_WORDS_S = 5.0
_last_words: list[Callable[[int], object]] = []
_hosts: list[Callable[[int], object]] = []

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

left_behind: list[object] = []
"""Calls that ignored their cancellation; collecting one would run its code once more, perhaps for ever."""


def die_with(parent: int) -> None:
    """Make the kernel kill this process when `parent` ends, on Linux.

    Elsewhere the process learns of it only from what the two share, such as a closed socket.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants that lose theirs.

    Without it, on Linux and always elsewhere, the first process of the machine is.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
    flush_output()
    os._exit(status)


@contextlib.contextmanager
def last_words(say: Callable[[int], object]) -> Iterator[None]:
    """Call `say` with the status if the process exits inside the block.

    Nothing after that point is reached.
    """
    _last_words.append(say)
    try:
        yield
    finally:
        _last_words.remove(say)


@contextlib.contextmanager
def as_guest(leave: Callable[[int], object]) -> Iterator[None]:
    """Let `leave_at_once` call `leave` with the status inside the block.

    The process belongs to a program that continues; only the calling thread ends.
    """
    _hosts.append(leave)
    try:
        yield
    finally:
        _hosts.remove(leave)


def leave_at_once(status: int) -> NoReturn:
    """End the process with `status` now, from any thread.

    The last words take at most `LAST_WORDS_S` seconds. In a process of another program (`as_guest`), it is reported,
    and this thread alone ends.
    """

    def speak() -> None:
        for say in reversed(_last_words):
            with contextlib.suppress(Exception):  # the process ends with its status, whatever comes between
                say(status)
        flush_output()

    speaker = threading.Thread(target=speak, name="last-words", daemon=True)
    speaker.start()
    speaker.join(LAST_WORDS_S)
    if _hosts:
        _hosts[-1](status)
        sys.exit(status)
    os._exit(status)


def flush_output() -> None:
    """Flush printed text; text for a closed or broken stream is lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def lingering_threads() -> list[threading.Thread]:
    """Return the threads besides this one that the interpreter would wait for."""
    own = {threading.current_thread(), threading.main_thread()}
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in own]
