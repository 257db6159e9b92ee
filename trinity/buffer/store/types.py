"""What the experience store takes and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from trinity.common.experience import EID, Experience

NO_TASK = EID().tid


@dataclass(frozen=True)
class AppendResult:
    """Outcome of one append.

    Attributes:
        appended: experiences that are now ready.
        duplicates: experiences left out: the store has their step, or them.
        quarantined: experiences above the size limit, recorded as dropped (`oversize`).
    """

    appended: int
    duplicates: int
    quarantined: int = 0


@dataclass(frozen=True)
class ConsumerToken:
    """Right of one consumer to claim and commit.

    A newer token of the same consumer ends it.

    Attributes:
        buffer: name of the experience buffer.
        consumer: name of the consumer.
        run: run that owns the rows.
        stage: stage of that run.
        epoch: grows with every opening.
    """

    buffer: str
    consumer: str
    run: str
    stage: str
    epoch: int


@dataclass(frozen=True)
class Batch:
    """What a read returned.

    Attributes:
        experiences: claimed experiences in the order of the log; empty if all producers wait for the next
            weights and nothing is left, or if the buffer is closed.
        is_complete: as many as asked for, experiences or rollouts.
        is_closed: empty, and all producers are finished.
        evicted: experiences that left a full replay buffer for it.
    """

    experiences: list[Experience]
    is_complete: bool
    is_closed: bool
    evicted: int = 0


class BufferCounts(TypedDict):
    """Number of experiences by state; their sum is what was generated."""

    ready: int
    claimed: int
    trained: int
    dropped: dict[str, int]


def num_rollouts(experiences: Sequence[Experience]) -> int:
    """Return the number of rollouts.

    An experience that names no task is a rollout by itself.
    """
    named = {e.eid.rid for e in experiences if e.eid.tid != NO_TASK}
    return len(named) + sum(e.eid.tid == NO_TASK for e in experiences)
