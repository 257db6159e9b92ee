"""The base of sample strategies, and the default one."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.algorithm.sample_strategy.reader import SourceReader
from trinity.algorithm.sample_strategy.source import AuxiliaryReader, ExperienceSource
from trinity.algorithm.sample_strategy.utils import NUM_SHOWN, shown_rows, version_metrics
from trinity.common.config.buffer import BufferConfig
from trinity.common.errors import CheckpointError
from trinity.common.experience import Experience
from trinity.utils.declaration import Declared


class SampleStrategy(Declared, ABC):
    """Chooses the experiences of a training step.

    A constructor whose first argument is called `source` gets source and batch size. Any other one, as of published
    strategies, gets the section `buffer`; `attach` then sets source and batch size.

    Args:
        source: the trainer's experience buffer, or the section `buffer`.
        batch_size: rollouts a training step, or rows of a dataset (`buffer.train_batch_size`).
        buffer_config: the section `buffer`; published strategies pass it under this name.
        kwargs: ignored.

    Attributes:
        buffer_config: the section `buffer`; None where the constructor got the source.
        exp_buffer: the source in the form that published strategies read.
        mixes_experts: it adds rows of an expert: its argument `expert_data_ratio` of a batch, from the auxiliary buffer
            that its argument `sft_dataset_name` names.
        of_rollouts: it chooses among rollouts, so that it cannot read a dataset.
        auxiliary: the readers that `auxiliary_buffers` asked for, by name; filled before the first step.
    """

    kind = "sample_strategy"
    mixes_experts: ClassVar[bool] = False
    of_rollouts: ClassVar[bool] = False

    def __init__(
        self,
        source: ExperienceSource | BufferConfig | None = None,
        *,
        batch_size: int = 0,
        buffer_config: BufferConfig | None = None,
        **kwargs: Any,
    ) -> None:
        self.auxiliary: Mapping[str, AuxiliaryReader] = {}
        self.buffer_config = source if isinstance(source, BufferConfig) else buffer_config
        if source is not None and not isinstance(source, BufferConfig):
            self.attach(source, batch_size=batch_size)

    def attach(self, source: ExperienceSource, *, batch_size: int, reader: SourceReader | None = None) -> None:
        """Set what the strategy reads, and how much of it per step."""
        self.source = source
        self.batch_size = batch_size
        self.exp_buffer = reader or SourceReader(source, batch_size=batch_size)

    def auxiliary_buffers(self) -> tuple[str, ...]:
        """Return the names of the auxiliary buffers that the strategy reads."""
        return ()

    def set_model_version_metric(self, exp_list: list[Experience], metrics: dict[str, float]) -> None:
        """Add the `sample/...` metrics of model versions, tasks and rollouts."""
        metrics.update(version_metrics(exp_list, self.exp_buffer.step))

    @abstractmethod
    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]]:
        """Return the batch of training step `step`, metrics and rows to show.

        The sample rows are a few rows to look at. The batch is empty at the end.
        """

    async def commit(self, step: int, experiences: Sequence[Experience]) -> None:
        """Record in the auxiliary buffers what training step `step` has used."""
        for reader in self.auxiliary.values():
            await asyncio.to_thread(reader.commit, step, [exp.eid.uid for exp in experiences])

    def close(self) -> None:
        """Release the auxiliary buffers; end a read that is waiting."""
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


@SAMPLE_STRATEGY.register_module("default")
@SAMPLE_STRATEGY.register_module("warmup", deprecated_for="default")
class DefaultSampleStrategy(SampleStrategy):
    """The next `batch_size` experiences of the buffer.

    Args:
        source: see `SampleStrategy`.
        batch_size: see `SampleStrategy`.
    """

    summary = "the next train_batch_size experiences of the experience buffer"

    def __init__(self, source: ExperienceSource | BufferConfig | None = None, *, batch_size: int = 0) -> None:
        super().__init__(source, batch_size=batch_size)

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]]:
        """Return the next batch and its metrics.

        The metrics are `sample/...` and `time/read_experience` (seconds).
        """
        start = time.perf_counter()
        exps = await self.source.read(self.batch_size, trained_version=step - 1)
        metrics = {"time/read_experience": time.perf_counter() - start}
        return exps, metrics | version_metrics(exps, step), shown_rows(exps[:NUM_SHOWN])
