"""What a trial may replace: its own files of an earlier call."""

from __future__ import annotations

import json
import sqlite3
import stat
import tempfile
from contextlib import closing
from pathlib import Path

from trinity.common.errors import EnvironmentProblem

BUFFER = "debug_buffer"
"""What each row of a database of ours says of its buffer; those of a run name another."""
_TABLES = frozenset({"experience", "experience_blob", "sqlite_sequence"})
_FACTS = frozenset({"row", "task", "run", "outcome", "turns"})
_PROFILER = b"viztracer"
"""Both kinds of profile name it: VizTracer's own page, and the text that is written without it."""


def refuse_unfit(file: Path) -> None:
    """Refuse a place where a trial cannot, or must not, write a file.

    What is there must be a regular file, and empty or written by an earlier call: rollouts or a profile.

    Raises:
        EnvironmentProblem: something else is there, or no file can be made (E3433).
    """
    try:
        there = file.lstat()
    except FileNotFoundError:
        _try_folder(file)
        return
    except OSError as error:
        raise unwritable(file, str(error.strerror)) from error
    if not stat.S_ISREG(there.st_mode):
        raise unwritable(file, "what is there is not a regular file")
    try:
        is_own = not there.st_size or _is_database(file) or _has_lines(file) or _is_profile(file)
    except OSError as error:
        raise unwritable(file, str(error.strerror)) from error
    if not is_own:
        raise unwritable(file, "what is there was not written by an earlier call, and is kept")
    _try_folder(file)


def unwritable(file: Path, reason: str) -> EnvironmentProblem:
    """Return the error of a file that cannot be written."""
    return EnvironmentProblem(f"{file} cannot be written: {reason}; give another file", code="E3433")


def _try_folder(file: Path) -> None:
    """Make and remove a folder next to the file, or where its own will be."""
    folder = next(each for each in file.absolute().parents if each.exists())
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            pass
    except OSError as error:
        raise unwritable(file, str(error.strerror)) from error


def _is_database(file: Path) -> bool:
    try:  # immutable: to look at the database of a run makes no file beside it
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            others = "SELECT 1 FROM experience WHERE buffer != ? LIMIT 1"
            return (
                "experience" in names and names <= _TABLES and connection.execute(others, (BUFFER,)).fetchone() is None
            )
    except sqlite3.Error:
        return False


def _has_lines(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8") as lines:
            first = json.loads(lines.readline())
    except ValueError:
        return False
    return isinstance(first, dict) and first.keys() >= _FACTS


def _is_profile(file: Path) -> bool:
    if file.suffix not in (".html", ".txt"):
        return False
    return _PROFILER in file.read_bytes()
