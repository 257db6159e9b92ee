"""What functions and judges return."""

from dataclasses import dataclass
from typing import Any


@dataclass
class WorkflowOutput:
    reward: float | None = None
    response: Any = None
    metrics: dict[str, float] | None = None


@dataclass
class JudgeOutput:
    reward: float
    metrics: dict[str, float] | None = None
