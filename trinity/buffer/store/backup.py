"""Text copy of the log as JSON lines with text, reward and metrics."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trinity.common.errors import StoreError
from trinity.common.experience import Experience
from trinity.common.payload import plain


class JSONBackup:
    """Appends experiences as JSON lines, without token ids.

    The file is written after the log has committed: it is a copy to read. Several processes may write it.

    Args:
        path: the file; made on first use, readable by its owner only.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, experiences: Iterable[Experience]) -> int:
        """Append one line per experience; return the number of lines.

        Raises:
            StoreError: the file cannot be written (E5206).
        """
        lines = [json.dumps(record(experience), ensure_ascii=True) + "\n" for experience in experiences]
        with self._opened() as file:
            file.write("".join(lines))
        return len(lines)

    def known_uids(self) -> set[str]:
        """Return the ids in the file.

        A last line that was not written completely is cut off first.

        Raises:
            StoreError: the file cannot be read or written (E5206).
        """
        known = set()
        with self._opened() as file:
            end = 0
            file.seek(0)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    file.truncate(end)
                    break
                end = file.tell()
                known.add(_uid(line))
        return known

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        """Lock the file for this process, and sync it to disk at the end."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600), "a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}", code="E5206") from error


def _uid(line: str) -> str:
    """Return the id that a line holds; empty for a foreign line."""
    try:
        return str(json.loads(line)["uid"])
    except (ValueError, KeyError, TypeError):
        return ""


def record(experience: Experience) -> dict[str, object]:
    """Return one line of the backup as a mapping.

    It holds id, text, reward, metrics and info.
    """
    return {
        "uid": experience.eid.uid,
        "task_id": experience.eid.tid,
        "reward": experience.reward,
        "prompt_text": experience.prompt_text,
        "response_text": experience.response_text,
        "truncate_status": experience.truncate_status,
        "metrics": plain(experience.metrics, where="metrics"),
        "info": plain(experience.info, where="info"),
    }
