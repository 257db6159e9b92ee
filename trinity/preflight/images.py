"""Checks that policy, trainer and engine fit the images of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.config.keys import AUXILIARY, EXPERIENCES, KEYS, ROLLOUT_MODEL, value_of
from trinity.common.config.problems import Finding
from trinity.common.config.resolved import num_workers
from trinity.common.constants import PROCESSOR
from trinity.common.models.families import VISION
from trinity.preflight.data import trained_dataset
from trinity.preflight.model_dir import POLICY
from trinity.preflight.model_files import UnreadableFile, read_mapping

if TYPE_CHECKING:
    from trinity.common.config import Config

FREEZE = KEYS.trainer.trainer_config.actor_rollout_ref.actor.freeze_vision_tower


def check_images(config: Config) -> Iterator[Finding]:
    """Yield why images would not be read, or their model not be trained."""
    folder = Path(config.model.model_path or "").expanduser()
    try:
        kind = str(read_mapping(folder / "config.json").get("model_type"))
    except (UnreadableFile, OSError):
        return
    if kind in VISION:
        yield from _of_vision_model(config, folder, kind)
        return
    asked = [(str(ROLLOUT_MODEL.enable_multimodal), config.explorer.rollout_model.enable_multimodal)]
    asked.append((str(FREEZE), config.trainer.trainer_config.actor_rollout_ref.actor.freeze_vision_tower))
    given = [(f"{key}: true", key) for key, is_asked in asked if is_asked]
    given += [(f"{key}: {column}", key) for key, column in _demonstrated(config)]
    for written, key in given:
        yield Finding(
            "E3133",
            key,
            f"`{written}` does not fit {folder}: a model of type {kind} reads no images here; give a model of one of "
            f"these families: {', '.join(VISION)}",
        )


def _demonstrated(config: Config) -> Iterator[tuple[str, str]]:
    """Yield key and column of the images of datasets that are trained on."""
    if config.mode not in ("both", "train"):
        return
    buffers = {str(AUXILIARY[name]): each for name, each in config.buffer.trainer_input.auxiliary_buffers.items()}
    dataset = trained_dataset(config)
    if dataset is not None:
        buffers[str(EXPERIENCES)] = dataset
    for key, buffer in buffers.items():
        if buffer.format.image_key is not None and buffer.schema_type in (None, "sft"):
            yield f"{key}.format.image_key", buffer.format.image_key


def _of_vision_model(config: Config, folder: Path, kind: str) -> Iterator[Finding]:
    if not (folder / PROCESSOR).is_file():
        yield Finding(
            "E3108",
            POLICY,
            f"{folder} has no {PROCESSOR}, which says how images become the model's input; copy that of the model that "
            "it was made from",
        )
    if config.mode not in ("both", "train"):
        return
    shared = KEYS.trainer.megatron.tensor_model_parallel_size, KEYS.trainer.megatron.pipeline_model_parallel_size
    for key in (KEYS.trainer.ulysses_sequence_parallel_size, *shared):
        size = value_of(config, key)
        if num_workers(config) > 1 and size > 1:
            why = f"the workers of a model of type {kind} share weights and rows, and nothing else here; write 1"
            yield Finding("E3132", str(key), f"`{key}: {size}`: {why}")
