"""Checkpoints of the trainer as plain tensors.

Also publishes the masking of conversations under its documented import path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch._weights_only_unpickler import UnpicklingError
from torch.distributed.tensor import DTensor, Shard

from trinity.common.errors import CheckpointError
from trinity.common.models.masking import (
    get_action_mask_method,
    tokenize_and_mask_messages_default,
    tokenize_and_mask_messages_hf,
)
from trinity.common.models.weights import has_safetensors, read_tensors
from trinity.common.tensor_files import read_tensors_of

__all__ = [
    "get_action_mask_method",
    "get_checkpoint_dir_with_step_num",
    "load_fsdp_state_dict_from_verl_checkpoint",
    "load_state_dict",
    "tokenize_and_mask_messages_default",
    "tokenize_and_mask_messages_hf",
]

LATEST = "latest_checkpointed_iteration.txt"
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


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
    if any(folder.glob("model_world_size_*_rank_*.pt")):
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
    if not any(folder.glob("model_world_size_*")) and (folder / "actor").is_dir():
        folder = folder / "actor"
    world_size = _world_size(folder)
    ranks = [_read(folder / f"model_world_size_{world_size}_rank_{rank}.pt") for rank in range(world_size)]
    for rank, shard in enumerate(ranks):
        if shard.keys() != ranks[0].keys():
            raise CheckpointError(f"{folder}: rank {rank} holds other weights than rank 0", code="E7003")
    return {name: _joined(name, [shard[name] for shard in ranks], folder) for name in ranks[0]}


def _world_size(folder: Path) -> int:
    if (folder / "fsdp_config.json").is_file():
        try:
            return int(json.loads((folder / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder}/fsdp_config.json has no world_size: {error}", code="E7003") from error
    sizes = {int(match[1]) for path in folder.glob("*.pt") if (match := _SHARD.fullmatch(path.name))}
    if len(sizes) != 1:
        found = f"files of world sizes {sorted(sizes)}" if sizes else "no file model_world_size_W_rank_R.pt"
        raise CheckpointError(f"{folder} must hold one veRL model checkpoint, found {found}", code="E7003")
    return sizes.pop()


def _read(path: Path) -> dict[str, Tensor]:
    try:
        state = read_tensors_of(path)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", code="E7003") from error
    except UnpicklingError as error:
        raise CheckpointError(f"{path} holds objects other than tensors: {error}", code="E7003") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} must hold a mapping of names to tensors, got {type(state)}", code="E7003")
    return state


def _joined(name: str, shards: Sequence[Tensor], folder: Path) -> Tensor:
    """Return one weight, joined from its shards in rank order."""
    first = shards[0]
    if not isinstance(first, DTensor):
        return first.detach()
    ranks, dim = _shard_ranks(first)
    pieces = [_local(shards[rank]) for rank in ranks]
    full = pieces[0] if dim is None else torch.cat(pieces, dim=dim)
    if full.shape != first.shape:
        raise CheckpointError(
            f"{folder}: the shards of {name} join to {list(full.shape)}, expected {list(first.shape)}", code="E7003"
        )
    return full.detach()


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _shard_ranks(tensor: DTensor) -> tuple[list[int], int | None]:
    """Return a weight's shard ranks in mesh order and the split dimension.

    The ranks are those of the first replica; the dimension is None for a replicated weight.
    """
    mesh = tensor._spec.mesh.mesh
    dims = [(axis, place.dim) for axis, place in enumerate(tensor._spec.placements) if isinstance(place, Shard)]
    if not dims:
        return [int(mesh.flatten()[0])], None
    if len(dims) > 1:
        raise CheckpointError("weights split over more than one mesh dimension cannot be read", code="E7003")
    axis, dim = dims[0]
    ranks = mesh.movedim(axis, -1).reshape(-1, mesh.shape[axis])[0]
    return [int(rank) for rank in ranks], dim
