"""What the standard error of a process that has ended says of its end."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence

KEPT_LINES = 400
"""Lines at the end of a stream that are looked at; a traceback is shorter."""

_HEAD = "Traceback (most recent call last):"
_FATAL = re.compile(r"Fatal Python error: ")
_WARNING = re.compile(r"\b\w*Warning\b|\bWARN(ING)?\b|resource_tracker|^\[W\d")


def told_by(lines: Iterable[str]) -> str:
    """Return `; its last line on stderr: ...`, or empty text without lines.

    Where an exception ended the process, its handlers and its libraries continue to write: so the line is that of the
    last traceback, or of a fatal error of the interpreter, else the last one that is not of a warning.
    """
    kept = [line.rstrip() for line in deque(lines, KEPT_LINES) if line.strip()]
    line = _raised(kept) or _last(kept)
    return f"; its last line on stderr: {line}" if line else ""


def _raised(lines: Sequence[str]) -> str:
    """Return the exception of the last traceback, or the last fatal error.

    Empty without one.
    """
    for number in range(len(lines) - 1, -1, -1):
        if _FATAL.search(lines[number]):
            return lines[number].strip()
        prefix, head, _ = lines[number].partition(_HEAD)
        if not head:
            continue
        # Frames are indented below the head; some loggers put their own words before each line.
        below = (each.removeprefix(prefix) for each in lines[number + 1 :])
        return next((each.strip() for each in below if not each.startswith(" ")), "")
    return ""


def _last(lines: Sequence[str]) -> str:
    """Return the last line that is neither a warning nor its source line.

    If all lines are, return the last one.
    """
    own = [line for line in lines if not _WARNING.search(line) and not line.lstrip().startswith("warnings.warn(")]
    return (own or lines or [""])[-1].strip()
