"""Checkpoint files of any number of ranks, read by any number of ranks.

Each rank's file holds its parts as DTensors on a mesh (veRL's layout); one worker's holds plain tensors. One tensor
after another is put together from the files and cut anew, so that no rank ever holds a second model.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.serialization import safe_globals

from trinity.trainer.verl.ranks import local

_NAME = re.compile(r"\w+_world_size_(\d+)_rank_\d+\.pt")

# What a DTensor consists of, in the supported versions of PyTorch; nothing else is unpickled beside plain tensors.
_ALLOWED = (
    ("torch.distributed.tensor", ("DTensor", "Shard", "Replicate", "Partial")),
    ("torch.distributed.tensor.placement_types", ("Shard", "Replicate", "Partial")),
    ("torch.distributed.tensor._dtensor_spec", ("DTensorSpec", "TensorMeta", "ShardOrderEntry")),
    ("torch.distributed.device_mesh", ("DeviceMesh",)),
    ("torch.distributed._mesh_layout", ("_MeshLayout", "_FlatLayout")),
)


def suffix(rank: int, world: int) -> str:
    """Return the end of the names of a rank's files."""
    return f"world_size_{world}_rank_{rank}.pt"


def saved_world(folder: Path) -> int:
    """Return how many ranks wrote the part of a checkpoint in `folder`.

    Raises:
        OSError: nothing there says it.
        ValueError: `fsdp_config.json` is no JSON.
        KeyError: it does not say it.
    """
    file = folder / "fsdp_config.json"
    if file.is_file():
        return int(json.loads(file.read_text(encoding="utf-8"))["world_size"])
    worlds = [int(m.group(1)) for path in folder.iterdir() if (m := _NAME.fullmatch(path.name))]
    if not worlds:
        raise FileNotFoundError(f"{folder} holds no file of a rank")
    return max(worlds)


def read_parts(folder: Path, kind: str, world: int) -> list[Any]:
    """Return what each rank wrote as `kind`, its tensors mapped from the files.

    Raises:
        OSError: a file is missing.
        UnpicklingError: a file holds something else than tensors and plain values.
    """
    allowed = []
    for module, names in _ALLOWED:
        try:
            found = importlib.import_module(module)
        except ImportError:  # of another version of PyTorch, which writes other names
            continue
        allowed += [vars(found)[name] for name in names if name in vars(found)]
    with safe_globals(allowed):
        return [
            torch.load(folder / f"{kind}_{suffix(rank, world)}", map_location="cpu", weights_only=True, mmap=True)
            for rank in range(world)
        ]


def joined(parts: list[Any]) -> Tensor:
    """Return the whole tensor of which `parts` are those of all ranks, in the order of ranks.

    Raises:
        ValueError: they are no parts of one tensor along one dimension.
    """
    first = parts[0]
    if not hasattr(first, "device_mesh"):
        return first
    mesh = first.device_mesh.mesh
    dims = [p.dim for p in first.placements if p.is_shard()]
    if len(dims) > 1 or (mesh.ndim > 1 and not first.placements[0].is_replicate()):
        raise ValueError(f"a tensor is spread as {first.placements}, which is not read here")
    chosen = mesh.reshape(-1, mesh.shape[-1])[0].tolist() if dims else [int(mesh.reshape(-1)[0])]
    pieces = [local(parts[rank]) for rank in chosen]
    full: Tensor = torch.cat(pieces, dims[0]) if dims else pieces[0]
    if full.shape != first.shape:
        raise ValueError(f"the parts of a tensor of shape {tuple(first.shape)} make one of {tuple(full.shape)}")
    return full


def own_part(full: Tensor, like: Tensor) -> Tensor:
    """Return of a whole tensor what this rank holds of `like`.

    Raises:
        ValueError: the shapes differ.
    """
    if full.shape != like.shape:
        raise ValueError(f"a tensor has shape {tuple(full.shape)}, the model's has {tuple(like.shape)}")
    mesh: Any = getattr(like, "device_mesh", None)
    if mesh is None:
        return full
    size, index = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
    pieces = torch.chunk(full, size)
    return pieces[index] if index < len(pieces) else full[:0]


@torch.no_grad()
def load_model_parts(parts: list[Mapping[str, Tensor]], model: nn.Module) -> None:
    """Fill the model's tensors from what all ranks wrote.

    Raises:
        KeyError: a tensor is missing.
        ValueError: a tensor is there that the model does not have, or has another shape.
    """
    own = model.state_dict()
    more = sorted(parts[0].keys() - own.keys())
    if more:
        raise ValueError(f"{len(more)} tensors are not the model's (first {more[0]})")
    for name, tensor in own.items():
        local(tensor).copy_(own_part(joined([part[name] for part in parts]), tensor))


def optimizer_state(parts: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer state of all ranks as a state for this rank's parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for number, values in parts[0]["state"].items():
        like, each = parameters[number], [part["state"][number] for part in parts]
        state[number] = {key: _cut([of_rank[key] for of_rank in each], like) for key in values}
    return {"state": state, "param_groups": parts[0]["param_groups"]}


def _cut(values: list[Any], like: Tensor) -> Any:
    """Return this rank's part of one entry of the optimizer's state; a number is everybody's."""
    if not isinstance(values[0], Tensor) or values[0].dim() == 0:
        return values[0]
    part = own_part(joined(values), like)
    mesh: Any = getattr(like, "device_mesh", None)
    if mesh is None:
        return part
    from torch.distributed.tensor import DTensor

    spread: Any = like
    own = part.clone().to(local(like).device)
    return DTensor.from_local(own, mesh, spread.placements, run_check=False, shape=like.shape, stride=like.stride())
