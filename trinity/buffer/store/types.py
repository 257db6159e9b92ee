"""What the experience store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from trinity.common.experience import EID, Experience

NO_TASK = EID().tid


@dataclass(frozen=True)
class Fates:
    """What happened to the rollouts of a buffer.

    `issued` is the sum of `ended` and `waiting`.

    Attributes:
        issued: rollouts that were begun for training, in explore steps that are finished.
        ended: rollouts that wait no more, by fate: `trained`, `stale`, `filtered/<operator>`, `failed/<kind>`.
        waiting: rollouts in the log that no training step has used yet.
        own: of these numbers, those that the caller has counted, until the step of the call.
    """

    issued: int
    ended: Mapping[str, int]
    waiting: int
    own: Mapping[str, int] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Return the numbers as metrics: `fate/...` and `perf/fate/waiting`.

        The first are the caller's own. The number of waiting rollouts depends on the speed of explorer and trainer,
        like all metrics under `perf/`.
        """
        own = {f"fate/{name}": float(number) for name, number in self.own.items()}
        return own | {"perf/fate/waiting": float(self.waiting)}

    def __str__(self) -> str:
        ended = sorted(self.ended.items(), key=lambda item: (item[0] != "trained", item[0]))
        parts = [f"{number} {name}" for name, number in ended if number or name == "trained"]
        return f"{self.issued} issued = " + " + ".join([*parts, f"{self.waiting} waiting"])


@dataclass(frozen=True)
class AppendResult:
    """Outcome of one append.

    Attributes:
        appended: experiences that are now ready.
        duplicates: experiences left out because the store already has them or their explore step.
        quarantined: experiences above the size limit, recorded as dropped (`oversize`).
        fates: of the buffer's rollouts after it; `own` are those of the producer until this step.
    """

    appended: int
    duplicates: int
    quarantined: int = 0
    fates: Fates = Fates(0, {}, 0)


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
        experiences: claimed experiences in the order of the log, or by priority with a replay buffer; empty if all
            producers wait for the next weights and nothing is left, or if the buffer is closed.
        is_complete: as many as asked for, experiences or rollouts.
        is_closed: empty, and all producers are finished.
        evicted: experiences that this read removed from a full replay buffer.
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


def rollout_keys(experiences: Sequence[Experience]) -> set[str]:
    """Return the keys of the rollouts that the experiences belong to."""
    return {rollout_key(experience) for experience in experiences}


def rollout_key(experience: Experience) -> str:
    """Return the key that a rollout's experiences share (`num_rollouts`)."""
    return experience.eid.rid if experience.eid.tid != NO_TASK else experience.eid.uid
