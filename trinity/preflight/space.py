"""Checks that a stage can write its folder and store two checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.utils.memory import shown_bytes

if TYPE_CHECKING:
    from trinity.common.config import Config

BYTES_PER_WEIGHT_BYTE = 6
ROOT = str(KEYS.checkpoint_root_dir)


def check_space(config: Config) -> Iterator[Finding]:
    """Yield findings: unwritable job folder (E3601), full disk ahead (W3702)."""
    job = Path(config.checkpoint_job_dir)
    there = next(folder for folder in (job, *job.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is not a folder" if not there.is_dir() else "cannot be written"
        message = f"{there}, where {job} would be, {what}"
        yield Finding("E3601", ROOT, message, suggestion="choose another checkpoint_root_dir")
        return
    folders = [Path(config.model.model_path)]
    if config.trainer.trainer_config.critic.enable:
        folders.append(Path(config.model.critic_model_path or folders[0]))
    weights = sum(file.stat().st_size for model in folders if model.is_dir() for file in model.glob("*.safetensors"))
    needed, free = 2 * BYTES_PER_WEIGHT_BYTE * weights, shutil.disk_usage(there).free
    if needed > free:
        message = f"two checkpoints may take {shown_bytes(needed)} and {shown_bytes(free)} are free at {there}"
        yield Finding("W3702", ROOT, message, suggestion="choose a larger disk")
