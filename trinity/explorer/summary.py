"""What an explorer says at its end, also to a process without torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ExploreSummary:
    """What the explorer did.

    Attributes:
        step: the last finished explore step, over all processes of the job.
        experience_count: experiences appended by this process.
        evaluations: explore step -> metrics of the evaluations of this process.
    """

    step: int = 0
    experience_count: int = 0
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
