"""`validate`: whether the trainer's processes can divide the models as the configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinity.common.config import Finding, StagePlan

KEYS = {
    "E1836": "trainer.ulysses_sequence_parallel_size",
    "E1849": "trainer.megatron.pipeline_model_parallel_size",
    "E1855": "trainer.megatron.tensor_model_parallel_size",
    "E1856": "trainer.trainer_strategy",
}


def check_division_of(stage: StagePlan) -> Iterator[Finding]:
    """Yield what is wrong with the sizes for the model of the stage and its critic, from their `config.json`."""
    from trinity.common.config.draft import path_of
    from trinity.common.models.preflight_division import check_division

    config = stage.config
    trainer, model, critic = config.trainer, config.model, config.trainer.trainer_config.critic
    if config.mode not in ("both", "train"):
        return
    is_megatron = trainer.trainer_strategy == "megatron"
    tensor_size = trainer.megatron.tensor_model_parallel_size if is_megatron else 1
    num_stages = trainer.megatron.pipeline_model_parallel_size if is_megatron else 1
    paths = [model.model_path, model.critic_model_path if critic.enable else None]
    for path in dict.fromkeys(path for path in paths if path):
        for finding in check_division(
            path,
            sequence_size=trainer.ulysses_sequence_parallel_size,
            tensor_size=tensor_size,
            num_stages=num_stages,
        ):
            message = f"{path}: {finding.message}"
            yield stage.tree.problem(finding.code, path_of(KEYS[finding.code]), message)
