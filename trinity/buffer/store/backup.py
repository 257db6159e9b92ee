"""Text copy of what was appended: JSON lines with text, reward and metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from trinity.common.errors import StoreError
from trinity.common.experience import Experience
from trinity.common.payload import plain


class JSONBackup:
    """Appends experiences as JSON lines, without token ids.

    The file is written after the log has committed: it is a copy to read, never read back.

    Args:
        path: the file; made on first use, readable by its owner only.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, experiences: Iterable[Experience]) -> int:
        """Append one line an experience; return how many.

        Raises:
            StoreError: the file cannot be written (E5206).
        """
        lines = [json.dumps(record(experience), ensure_ascii=True) + "\n" for experience in experiences]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a") as file:
                file.write("".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}", code="E5206") from error
        return len(lines)


def record(experience: Experience) -> dict[str, object]:
    """Return what a line of the backup holds: identity, text, reward, metrics, info."""
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
