"""Identities of the samples of a rollout's calls."""

from __future__ import annotations

from typing import NamedTuple


class RunIds(NamedTuple):
    """The rollouts of a task that one model makes.

    Attributes:
        batch: explore step, or `<step>/<taskset>`.
        task: index of the task in the batch.
        runs: numbers of the rollouts.
    """

    batch: int | str
    task: int | str
    runs: range

    def of_call(self, turn: int | str, n: int) -> list[str]:
        """Return the identities `batch/task/run/turn` of `n` samples.

        They are of one rollout after the other. Where there are more samples than rollouts, the further ones have
        `turn.1`, `turn.2` and so on for `turn`: sample 1 of one rollout is not sample 0 of the next.
        """
        numbers = (divmod(number, len(self.runs)) for number in range(n))
        turns = [(place, f"{turn}.{more}" if more else str(turn)) for more, place in numbers]
        return [f"{self.batch}/{self.task}/{self.runs[place]}/{each}" for place, each in turns]
