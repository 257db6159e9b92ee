"""What a check of a workflow has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trinity.common.errors import ExitCode

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class CheckFinding:
    """One line of the table.

    Attributes:
        check: what was looked at.
        level: `error` for what breaks or spoils a run, `warning` for what may not be meant.
        message: what was found, and the way out.
    """

    check: str
    level: Level
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def exit_code(findings: Sequence[CheckFinding]) -> ExitCode:
    """Return the status of the command: 5 if there is an error."""
    return ExitCode.RUNTIME if any(finding.level == "error" for finding in findings) else ExitCode.DONE
