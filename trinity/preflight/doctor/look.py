"""What one look at this machine found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trinity.common.config.problems import Finding

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Look:
    """One line of `trinity doctor`.

    Attributes:
        name: what was looked at; it stays the same from version to version.
        found: what is there, in one line.
        problems: what is wrong or unusual about it; their keys are the name.
    """

    name: str
    found: str
    problems: tuple[Finding, ...] = ()

    @property
    def state(self) -> str:
        """`ok`, `warning` or `error`: the worst of its problems."""
        if not self.problems:
            return OK
        return ERROR if any(problem.is_error for problem in self.problems) else WARNING

    def facts(self) -> dict[str, Any]:
        """Return everything in JSON types."""
        problems = [
            {"code": each.code, "message": each.message, "way_out": each.suggestion} for each in self.problems
        ]  # fmt: skip
        return {"name": self.name, "state": self.state, "found": self.found, "problems": problems}


def problem(code: str, message: str, way_out: str) -> Finding:
    """Return a problem of what is looked at, which `looked` names."""
    return Finding(code, "", message, suggestion=way_out)


def looked(name: str, found: str, *problems: Finding) -> Look:
    """Return a look at `name`, whose problems have this as their key."""
    return Look(name, found, tuple(replace(each, key=name) for each in problems))
