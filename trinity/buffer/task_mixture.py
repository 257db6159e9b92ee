"""Several tasksets as one: which of them the next task comes from.

An epoch has as many tasks as all tasksets together have usable rows. Each taskset has its share of them, by weight or,
without weights, by its number of rows, so that every row comes once. The shares are whole numbers, in every epoch the
same, and a permutation that follows from seed and epoch mixes them: which taskset a task is from is a function of the
seed and of the position. Its row is the next one of the taskset's own selector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trinity.buffer.dataset import check_unchanged
from trinity.buffer.selector.selector import generator
from trinity.buffer.task_reader import TaskReader
from trinity.common.constants import DEFAULT_SEED
from trinity.common.workflows.task import Task


class TaskMixture:
    """Reads the tasks of several tasksets in turn, resuming exactly.

    Args:
        readers: of the tasksets, each without end; `config.weight` is its share where all have one.
        batch_size: tasks of a `read` without a number.
        seed: of the mixture; None: 42.
        total_epochs: passes, 0 without end.
    """

    def __init__(
        self, readers: Sequence[TaskReader], *, batch_size: int = 1, seed: int | None = None, total_epochs: int = 0
    ) -> None:
        self.readers = list(readers)
        self.batch_size = batch_size
        self.seed = DEFAULT_SEED if seed is None else seed
        self.by_number = {reader.config.index: reader for reader in self.readers}
        self._shares = _shares(self.readers)
        self._end = total_epochs * len(self) if total_epochs else None
        self._position = 0
        self._epoch = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        """Return the tasks of an epoch: the usable rows of all tasksets."""
        return sum(len(reader) for reader in self.readers)

    def read(self, n: int | None = None) -> list[Task]:
        """Return the next `n` tasks (None: `batch_size`).

        Fewer are returned at the end of the last epoch, none after it.
        """
        n = self.batch_size if n is None else n
        if self._end is not None:
            n = max(0, min(n, self._end - self._position))  # resumed with fewer epochs than were read
        places = [self._taskset_at(self._position + i) for i in range(n)]
        self._position += n
        tasks = {place: iter(self.readers[place].read(count)) for place, count in sorted(Counter(places).items())}
        return [next(tasks[place]) for place in places]

    async def read_async(self, n: int | None = None) -> list[Task]:
        """Return what `read` returns."""
        return self.read(n)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in all tasksets, JSON-able."""
        return self._own() | {
            "position": self._position,
            "tasksets": {str(number): reader.state_dict() for number, reader in self.by_number.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; with more epochs, to their new end.

        Raises:
            CheckpointError: a dataset, a selector or the mixture changed (E7005).
        """
        check_unchanged("the mixture of the tasksets", self._own(), state)
        for number, reader in self.by_number.items():
            reader.load_state_dict(state["tasksets"][str(number)])
        self._position = int(state["position"])

    def _own(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "names": [reader.config.name for reader in self.readers],
            "shares": self._shares,
        }

    def _taskset_at(self, position: int) -> int:
        """Return the index of the taskset that the task at `position` is from."""
        epoch, place = divmod(position, len(self))
        if epoch != self._epoch:
            ids = np.repeat(np.arange(len(self.readers)), self._shares)
            self._epoch = epoch
            self._order = generator(self.seed, epoch).permutation(ids).tolist()
        return self._order[place]


def _shares(readers: Sequence[TaskReader]) -> list[int]:
    """Return the number of tasks per epoch of each taskset, at least 1.

    They are the weights' shares, rounded so that they add up: the largest remainders are rounded up.
    """
    sizes = [len(reader) for reader in readers]
    given = [reader.config.weight for reader in readers]
    weights = [weight for weight in given if weight is not None]
    if len(weights) < len(given):
        return sizes
    exact = [sum(sizes) * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: shares[i] - exact[i])
    for i in range(sum(sizes) - sum(shares)):
        shares[by_remainder[i % len(shares)]] += 1
    for _ in range(sum(shares) - sum(sizes)):  # of those that were raised to 1
        shares[shares.index(max(shares))] -= 1
    return shares
