"""Parts of a job that run separately and share its folder.

Covers their names, what they keep in the folder, and what they must agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trinity.common.config import Config
from trinity.common.constants import BENCH, TRAINER, Mode, StorageType
from trinity.common.errors import CheckpointError, ConfigError
from trinity.launch.job import PARTS_FOLDER, SAVED_CONFIG, flatten

# What explorers and trainer of one job must say alike; the rest is each part's own business.
SHARED = (
    "algorithm.algorithm_type",
    "algorithm.advantage_fn",
    "buffer.trainer_input.experience_buffer.capacity",
    "buffer.trainer_input.experience_buffer.name",
    "buffer.trainer_input.experience_buffer.path",
    "buffer.trainer_input.experience_buffer.storage_type",
    "model.model_path",
    "model.chat_template_path",
    "model.custom_chat_template",
    "model.lora_configs",
    "synchronizer.sync_method",
    "synchronizer.sync_style",
    "synchronizer.sync_interval",
    "synchronizer.sync_offset",
    "synchronizer.explorer_sync_interval",
    "synchronizer.trainer_sync_interval",
)


def part_of(config: Config) -> str | None:
    """Return the name of a run in a shared job folder.

    None if the run does not share its folder.

    A trainer has one place, whatever its name: a second one finds it taken, and one that comes back under another name
    continues what was there.
    """
    if config.mode in (Mode.EXPLORE, Mode.SERVE):
        return config.explorer.name
    if config.mode == Mode.BENCH:
        return BENCH
    buffer = config.buffer.trainer_input.experience_buffer
    if config.mode == Mode.TRAIN and (buffer is None or buffer.storage_type != StorageType.FILE):
        return TRAINER
    return None


def check_shared_keys(job_dir: Path, part: str | None, text: str) -> None:
    """Compare a part's configuration with those of the others of its job.

    Args:
        job_dir: folder of the job.
        part: name of the part; None for a run that has the job to itself.
        text: YAML text of its resolved configuration.

    Raises:
        ConfigError: a key that all must say alike differs (E1810).
        CheckpointError: the job was begun apart and is continued in one process, or the other way round (E7040).
    """
    others = sorted((job_dir / PARTS_FOLDER).glob("*.yaml"))
    if part is None and any(path.stem != BENCH for path in others) or (
        part not in (None, BENCH) and (job_dir / SAVED_CONFIG).exists()
    ):  # fmt: skip
        begun, now = ("in parts", "in one process") if part is None else ("in one process", "in parts")
        raise CheckpointError(
            f"{job_dir} was begun {begun}, and this run would continue it {now}: the state of its explorers is kept "
            "in another place then; take the `mode` that it was begun with, or choose another `name`",
            code="E7040",
        )
    if part in (None, BENCH):
        return
    own = flatten(yaml.safe_load(text) or {})
    for path in others:
        if path.stem not in (part, BENCH):
            _check_alike(part or "", own, path.stem, flatten(yaml.safe_load(path.read_text("utf-8")) or {}))


def _check_alike(name: str, own: Mapping[str, Any], other_name: str, other: Mapping[str, Any]) -> None:
    different = [key for key in SHARED if own.get(key) != other.get(key)]
    if different:
        lines = "\n".join(
            f"  {key}: {own.get(key)!r} in {name}, {other.get(key)!r} in {other_name}" for key in different
        )
        raise ConfigError(
            f"{name} and {other_name} of one job disagree:\n{lines}\nwrite the same in both files, or choose another "
            "`name` for another job",
            code="E1810",
        )
