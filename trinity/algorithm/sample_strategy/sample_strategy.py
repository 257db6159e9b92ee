"""The base of sample strategies, and their source of experiences."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from trinity.common.errors import CheckpointError
from trinity.common.experience import Experience
from trinity.utils.declaration import Declared


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
    """Demonstrations beside the source.

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


class SampleStrategy(Declared, ABC):
    """Chooses the experiences of a training step.

    Args:
        source: the trainer's experience buffer.
        batch_size: rollouts a training step, or rows of a dataset (`buffer.train_batch_size`).

    Attributes:
        mixes_experts: it adds rows of an expert: its argument `expert_data_ratio` of a batch, from the auxiliary buffer
            that its argument `sft_dataset_name` names.
        of_rollouts: it chooses among rollouts, so that it cannot read a dataset.
        auxiliary: the readers that `auxiliary_buffers` asked for, by name; filled before the first step.
    """

    kind = "sample_strategy"
    mixes_experts: ClassVar[bool] = False
    of_rollouts: ClassVar[bool] = False

    def __init__(self, source: ExperienceSource, *, batch_size: int) -> None:
        self.source = source
        self.batch_size = batch_size
        self.auxiliary: Mapping[str, AuxiliaryReader] = {}

    def auxiliary_buffers(self) -> tuple[str, ...]:
        """Return the names of the auxiliary buffers that the strategy reads."""
        return ()

    @abstractmethod
    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]]:
        """Return the batch of training step `step`, metrics and sample rows.

        The sample rows are a few rows to look at. The batch is empty at the end.
        """

    async def commit(self, step: int, experiences: Sequence[Experience]) -> None:
        """Record in the auxiliary buffers what training step `step` used of them."""
        for reader in self.auxiliary.values():
            await asyncio.to_thread(reader.commit, step, [exp.eid.uid for exp in experiences])

    def close(self) -> None:
        """Release the auxiliary buffers; a read that waits ends."""
        for reader in self.auxiliary.values():
            reader.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue the strategy."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: this strategy has no state, and the checkpoint holds one.
        """
        if state:
            raise CheckpointError(
                f"the checkpoint holds a state of its sample strategy ({', '.join(state)}), which "
                f"{type(self).__name__} cannot continue; use the algorithm.sample_strategy that wrote it",
                code="E7012",
            )
