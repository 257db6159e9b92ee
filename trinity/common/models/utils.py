"""Checkpoints of the trainer as plain tensors.

Also publishes the masking of conversations under its documented import path.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from trinity.common.errors import CheckpointError
from trinity.common.models.masking import (
    get_action_mask_method,
    tokenize_and_mask_messages_default,
    tokenize_and_mask_messages_hf,
)
from trinity.common.models.shards import RankShards, has_shards
from trinity.common.models.weights import has_safetensors, read_tensors

__all__ = [
    "get_action_mask_method",
    "get_checkpoint_dir_with_step_num",
    "load_fsdp_state_dict_from_verl_checkpoint",
    "load_state_dict",
    "tokenize_and_mask_messages_default",
    "tokenize_and_mask_messages_hf",
]

LATEST = "latest_checkpointed_iteration.txt"


def get_checkpoint_dir_with_step_num(
    checkpoint_root_path: str | Path,
    trainer_type: str = "verl",
    step_num: int | None = None,
    raise_error: bool = True,
) -> tuple[str | None, int]:
    """Return the folder `global_step_N` under a job's folder, and N.

    Args:
        checkpoint_root_path: the job's folder.
        trainer_type: only `verl` has this layout.
        step_num: N; None means the latest, found from the folders if the hint file is missing or wrong.
        raise_error: raise if there is none; else return `(None, 0)`.

    Raises:
        CheckpointError: there is no such checkpoint (E7003), or an unknown trainer type (E7015).
    """
    root = Path(checkpoint_root_path)
    if trainer_type != "verl":
        raise CheckpointError(f"trainer_type must be verl, got {trainer_type!r}", code="E7015")
    step = _latest_step(root) if step_num is None else step_num
    folder = root / f"global_step_{step}"
    if step is not None and folder.is_dir():
        return str(folder), step
    if not raise_error:
        return None, 0
    wanted = "no checkpoint (global_step_N)" if step_num is None else f"no checkpoint global_step_{step_num}"
    raise CheckpointError(f"{wanted} in {root}", code="E7003")


def _latest_step(root: Path) -> int | None:
    hint = root / LATEST
    if hint.is_file():
        text = hint.read_text(encoding="ascii", errors="replace").strip()
        if text.isdigit() and (root / f"global_step_{text}").is_dir():
            return int(text)
    names = (path.name.removeprefix("global_step_") for path in root.glob("global_step_*") if path.is_dir())
    return max((int(name) for name in names if name.isdigit()), default=None)


def load_state_dict(checkpoint_dir: str | Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint folder by name.

    The folder holds veRL's shards or the safetensors files of Hugging Face. Tensors have the shapes of the model.

    Raises:
        CheckpointError: the folder has neither, or its shards do not fit together (E7003).
    """
    folder = Path(checkpoint_dir)
    if has_shards(folder):
        return load_fsdp_state_dict_from_verl_checkpoint(folder)
    if not has_safetensors(folder):
        raise CheckpointError(
            f"{folder} holds neither model_world_size_W_rank_R.pt nor model.safetensors", code="E7003"
        )
    return dict(read_tensors(folder))


def load_fsdp_state_dict_from_verl_checkpoint(checkpoint_path: str | Path) -> dict[str, Tensor]:
    """Return the full weights of a veRL checkpoint, in main memory.

    They are keyed by Hugging Face name. Reads `model_world_size_W_rank_R.pt` of all ranks without a process group or a
    GPU, and joins the shards along their dimension. Only tensors, DTensors and plain containers are read from the
    files; anything else in them is refused.

    Args:
        checkpoint_path: the folder `global_step_N/actor`, or `global_step_N`.

    Raises:
        CheckpointError: a file is missing, unreadable or holds other objects; shards do not fit (E7003).
    """
    folder = Path(checkpoint_path)
    if not has_shards(folder) and (folder / "actor").is_dir():
        folder = folder / "actor"
    with RankShards(folder).opened() as weights:
        return {name: tensor.clone() for name, tensor in weights.items()}  # else it may stay in its file
