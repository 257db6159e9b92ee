"""The strategy that adds expert demonstrations to the policy's own rows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import torch

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.algorithm.sample_strategy.source import ExperienceSource
from trinity.algorithm.sample_strategy.utils import NUM_SHOWN, shown_rows, version_metrics
from trinity.common.config.mixture import num_expert_rows
from trinity.common.errors import CheckpointError
from trinity.common.experience import CustomField, Experience

FIELDS = (CustomField("is_expert", "expert_mask", torch.bool), CustomField("train_step", "step", torch.long))
_TENSORS = ("logprobs", "advantages", "returns", "teacher_logprobs", "token_level_reward")
_ALWAYS = ("logprobs", "advantages")


@SAMPLE_STRATEGY.register_module("mix")
class MixSampleStrategy(SampleStrategy):
    """Mixes expert rows with rows of the experience buffer.

        ceil(`expert_data_ratio` `batch_size`) rows are from a dataset or queue, the rest from the experience buffer

    Each row tells the loss whether it is the expert's (`expert_mask`) and the training step (`step`). Expert rows have
    log-probabilities and advantages of 0 and no reward. After its last row a dataset starts again; every epoch has its
    own order. A queue gives each of its rollouts once. An incomplete batch of the buffer leaves the number of expert
    rows as it is.

    Args:
        source: see `SampleStrategy`.
        batch_size: see `SampleStrategy`.
        expert_data_ratio: share of expert rows in a batch, in [0, 1); at least one row is left for the policy's own.
        sft_dataset_name: name of the dataset or queue under `buffer.trainer_input.auxiliary_buffers`.

    Raises:
        ValueError: a ratio that is outside or leaves no row.
    """

    summary = "a share of the batch from a dataset of demonstrations, the rest from the experience buffer"
    mixes_experts = True
    of_rollouts = True

    def __init__(
        self,
        source: ExperienceSource,
        *,
        batch_size: int,
        expert_data_ratio: float = 0.5,
        sft_dataset_name: str = "sft_dataset",
    ) -> None:
        super().__init__(source, batch_size=batch_size)
        self.sft_dataset_name = sft_dataset_name
        self.num_expert = num_expert_rows(expert_data_ratio, batch_size)
        self.num_usual = batch_size - self.num_expert

    def auxiliary_buffers(self) -> tuple[str, ...]:
        """Return the name of the dataset, if a batch has rows of it."""
        return (self.sft_dataset_name,) if self.num_expert else ()

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[dict[str, Any]]]:
        """Return the next batch, the policy's own rows first.

        Return none at the end of the buffer. Metrics are those of `default`, over the policy's own rows,
        `sample/expert_count`, `sample/expert_epoch` (the pass over a dataset that the last expert row is from) and the
        numbers of rows left out of the dataset, as `sample/expert_...`.
        """
        start = time.perf_counter()
        usual = await self.source.read(self.num_usual, trained_version=step - 1)
        if not usual and self.source.is_closed:
            return [], {}, []
        expert: list[Experience] = []
        metrics = version_metrics(usual, step)
        if self.num_expert:
            reader = self.auxiliary[self.sft_dataset_name]
            expert = await asyncio.to_thread(reader.read, self.num_expert)
            if "epoch" in expert[-1].info:
                metrics["sample/expert_epoch"] = float(expert[-1].info["epoch"])
            metrics |= {name.replace("sample/", "sample/expert_", 1): v for name, v in reader.metrics().items()}
        metrics["sample/expert_count"] = float(len(expert))
        mixed = as_one_batch(usual, expert, step=step)
        metrics["time/read_experience"] = time.perf_counter() - start
        return mixed, metrics, shown_rows(usual[:NUM_SHOWN] + expert[:NUM_SHOWN])

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the dataset."""
        return {name: reader.state_dict() for name, reader in self.auxiliary.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: the checkpoint knows another dataset, or none (E7012), or the dataset changed (E7005).
        """
        if set(state) != set(self.auxiliary):
            raise CheckpointError(
                f"the checkpoint holds the position in {', '.join(sorted(state)) or 'no auxiliary buffer'}, and "
                f"algorithm.sample_strategy mix reads {', '.join(sorted(self.auxiliary)) or 'none'}; use the "
                "sample_strategy_args that wrote it, or start a new run with continue_from_checkpoint: false",
                code="E7012",
            )
        for name, reader in self.auxiliary.items():
            reader.load_state_dict(state[name])


def as_one_batch(usual: list[Experience], expert: list[Experience], *, step: int) -> list[Experience]:
    """Return the rows of both kinds as one batch.

    Each row is marked for the loss with its kind; a tensor that only one kind has is 0 in the other.

    Args:
        usual: the policy's own experiences.
        expert: demonstrations; what they lack is filled in.
        step: the training step.
    """
    fields = [field for exp in usual[:1] for field in exp.custom_fields]
    names = {name for name in _TENSORS if usual and all(vars(exp)[name] is not None for exp in usual)}
    for exp in expert:
        for name in names or set(_ALWAYS):
            setattr(exp, name, torch.zeros(exp.response_length))
        exp.reward = None
        exp.info = {field.source_field: 0 for field in fields} | exp.info
    for exp in usual + expert:
        exp.info = exp.info | {"is_expert": False, "train_step": step}
        exp.custom_fields = [*fields, *FIELDS]
    for exp in expert:
        exp.info["is_expert"] = True
    return usual + expert
