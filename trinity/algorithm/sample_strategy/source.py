"""What strategies read: the trainer's source, and demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from trinity.common.experience import Experience


@runtime_checkable
class ExperienceSource(Protocol):
    """Where a strategy gets experiences: the experience buffer or a dataset.

    Attributes:
        is_closed: the last read returned none, and nothing will come.
    """

    is_closed: bool

    async def read(self, num_experiences: int, *, trained_version: int) -> list[Experience]:
        """Return up to `num_experiences` rollouts (rows of a dataset).

        Fewer are returned if no more can come now, none at the end. A rollout has all of its experiences.
        """
        ...

    async def drop(self, uids: list[str], *, reason: str) -> None:
        """Record that experiences are not trained on; they are not read again."""
        ...


@runtime_checkable
class AuxiliaryReader(Protocol):
    """A reader of demonstrations, in addition to the source.

    It reads one of `buffer.trainer_input.auxiliary_buffers`.
    """

    def read(self, n: int) -> list[Experience]:
        """Return the next `n` experiences.

        After its last row a dataset starts again. From a queue they are the experiences of `n` rollouts, or of fewer
        where no more can come.

        Raises:
            StarvedError: a queue is at its end, or gave nothing before its deadline.
        """
        ...

    def commit(self, step: int, uids: Sequence[str]) -> None:
        """Record that training step `step` used experiences of this reader.

        Others among `uids` are ignored.
        """
        ...

    def close(self) -> None:
        """Release what is held; a read that waits ends with an error."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return counts of what was left out so far, under `sample/`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, JSON-able."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...
