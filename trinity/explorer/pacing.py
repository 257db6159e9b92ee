"""Limits of the scheduler's waits.

They are the deadline of an attempt, and the number of tasks of a batch that need not finish.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OverRollout:
    """Finish a batch before its slowest tasks (`explorer.over_rollout`).

    Attributes:
        ratio: share of straggler tasks that may be abandoned, [0, 1).
        wait_after_min: seconds that these are waited for all the same.
        return_partial_tasks: keep the runs that are done of a task that is not.
    """

    ratio: float
    wait_after_min: float
    return_partial_tasks: bool = False

    def needed(self, tasks: int) -> int:
        """Return how many of `tasks` must be done."""
        return min(tasks, math.ceil((1 - self.ratio) * tasks - 1e-9))


@dataclass(frozen=True)
class DynamicTimeout:
    """Deadline from measured times (`explorer.dynamic_timeout`).

    Attributes:
        ratio: deadline as a multiple of the average time of a completed attempt.
        warmup_min_steps: batches before it is used.
    """

    ratio: float
    warmup_min_steps: int


class AttemptTimes:
    """The deadline of the next attempt at a task that is trained on.

    Args:
        max_timeout: longest deadline in seconds.
        dynamic: how measured times shorten it; None: they do not.
    """

    def __init__(self, max_timeout: float, dynamic: DynamicTimeout | None) -> None:
        self._max_timeout = max_timeout
        self._dynamic = dynamic
        self._count = 0
        self._total_s = 0.0
        self._batches = 0

    @property
    def deadline_s(self) -> float:
        """Return `max_timeout`, or less if measured attempts are short.

        The shorter deadline is the average time of completed attempts times the ratio.
        """
        dynamic = self._dynamic
        if dynamic is None or not self._count or self._batches < dynamic.warmup_min_steps:
            return self._max_timeout
        return min(self._max_timeout, self._total_s / self._count * dynamic.ratio)

    @property
    def is_shortened(self) -> bool:
        """Whether measured times make the deadline shorter."""
        return self.deadline_s < self._max_timeout

    def note(self, seconds: float) -> None:
        """Count a completed attempt."""
        self._count += 1
        self._total_s += seconds

    def end_batch(self) -> None:
        """Count a batch."""
        self._batches += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, as plain JSON."""
        return {"count": self._count, "total_s": self._total_s, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from counts; an empty mapping leaves them."""
        if state:
            self._count, self._total_s, self._batches = state["count"], state["total_s"], state["batches"]


class BatchProgress:
    """Which tasks of a batch are done.

    Args:
        parts: task of each part of the batch.
    """

    def __init__(self, parts: Iterable[int]) -> None:
        self._open = Counter(parts)
        self._count = len(self._open)
        self._changed = asyncio.Event()

    @property
    def unfinished(self) -> set[int]:
        """Tasks with a part that is not done."""
        return set(self._open)

    def done(self, task: int) -> None:
        """Count a part as done."""
        self._open[task] -= 1
        if not self._open[task]:
            del self._open[task]
            self._changed.set()

    async def enough(self, rule: OverRollout) -> None:
        """Wait for the needed tasks, then for a grace period for the others.

        The work of the batch bounds the wait.
        """
        while self._count - len(self._open) < rule.needed(self._count):
            self._changed.clear()
            await self._changed.wait()
        await asyncio.sleep(rule.wait_after_min)
