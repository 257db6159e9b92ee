"""Standard output and error whose reader may disappear.

Text that cannot be written is dropped without an error.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from typing import Any, TextIO

from trinity.utils.log import get_logger

BLOCKED_S = 1.0
"""Seconds that a write waits for a reader, where the stream was made not to wait at all."""


class _LossyFile(io.FileIO):
    """A descriptor that accepts every write.

    Text for a closed pipe or terminal, or for a full disk, is dropped.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._what = name
        self._is_told = False

    def write(self, data: Any, /) -> int:
        """Write `data`; return how many bytes are done with: all of them."""
        rest = memoryview(data).cast("B")
        try:
            while rest:
                written = super().write(rest)
                if written is None and not select.select([], [self], [], BLOCKED_S)[1]:
                    break
                rest = rest[written or 0 :]
        except OSError as error:
            self._tell(error.strerror or str(error))
        return memoryview(data).nbytes

    def _tell(self, cause: str) -> None:
        if self._is_told:
            return
        self._is_told = True
        text = "%s cannot be written (%s): what is printed there is lost; the run and its log files continue"
        # In a thread of its own: this one may hold the very stream to which the log goes as well.
        told = (text, self._what, cause)
        threading.Thread(target=get_logger("cli").warning, args=told, name="lost-output", daemon=True).start()


def steady_output() -> None:
    """Let no write to standard output or error fail in this process."""
    sys.stdout = _steady(sys.stdout, "standard output")
    sys.stderr = _steady(sys.stderr, "standard error")


def _steady(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:  # it was closed when the process began
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    # No buffer below the text: where a thread writes while the interpreter ends, its lock would abort the process.
    return io.TextIOWrapper(
        _LossyFile(stream.fileno(), name),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=True,
        write_through=stream.write_through,
    )
