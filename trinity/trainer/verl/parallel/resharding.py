"""Checkpoint files of any number of ranks, read by any number of ranks.

Each rank's file holds its parts as DTensors on a mesh (veRL's layout); one worker's holds plain tensors. Tensors are
joined from the files and cut again one at a time, so that no rank ever holds a second model.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from trinity.common.models.shards import joined, shard_name
from trinity.common.tensor_files import read_tensors_of
from trinity.trainer.verl.parallel.exchange import local, whole
from trinity.trainer.verl.parallel.pipeline import Stages
from trinity.trainer.verl.parallel.ranks import Ranks
from trinity.trainer.verl.parallel.tensor import TENSOR

_NAME = re.compile(r"\w+_world_size_(\d+)_rank_\d+\.pt")


def saved_world(folder: Path) -> int:
    """Return how many ranks wrote the part of a checkpoint in `folder`.

    Raises:
        OSError: no file there tells it.
        ValueError: `fsdp_config.json` is not JSON.
        KeyError: `fsdp_config.json` does not tell it.
    """
    file = folder / "fsdp_config.json"
    if file.is_file():
        return int(json.loads(file.read_text(encoding="utf-8"))["world_size"])
    worlds = [int(m.group(1)) for path in folder.iterdir() if (m := _NAME.fullmatch(path.name))]
    if not worlds:
        raise FileNotFoundError(f"{folder} holds no file of a rank")
    return max(worlds)


def read_parts(folder: Path, kind: str, world: int) -> list[Any]:
    """Return what each rank wrote as `kind`, with tensors mapped from files.

    Raises:
        OSError: a file is missing.
        UnpicklingError: a file holds anything but tensors and plain values.
    """
    return [read_tensors_of(folder / shard_name(kind, world=world, rank=rank), is_mapped=True) for rank in range(world)]


def own_part(full: Tensor, like: Tensor) -> Tensor:
    """Return the part of `full` that this rank holds of `like`.

    `like` is a parameter, of any shape, and `full` a whole tensor of the same shape.

    Raises:
        ValueError: the shapes differ.
    """
    if full.shape != like.shape:
        raise ValueError(f"a tensor has shape {tuple(full.shape)}, the model's has {tuple(like.shape)}")
    mesh: Any = getattr(like, "device_mesh", None)
    if mesh is None:
        return full
    spread: Any = like
    placement, place = spread.placements[-1], dict(zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True))
    size = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    if TENSOR in size and placement.is_shard():  # FSDP divides this rank's part of the matrix
        full = _chunk(full, size[TENSOR], place[TENSOR], placement.dim)
    return _chunk(full, size["fsdp"], place["fsdp"], 0)


def _chunk(full: Tensor, size: int, index: int, dim: int) -> Tensor:
    """Return piece `index` of `torch.chunk`; the last ones may be empty."""
    pieces = torch.chunk(full, size, dim)
    return pieces[index] if index < len(pieces) else full.narrow(dim, 0, 0)


def gathered(named: Mapping[str, Tensor], name: str, *, stages: Stages | None) -> Tensor:
    """Return the whole tensor `name`, of any shape, on every rank.

    Every rank gets it, whichever stage holds it.

    Args:
        named: the tensors of this rank's stage.
        name: of the tensor in the whole model.
        stages: the stages of the model, if it has several.
    """
    stage = None if stages is None else stages.stage_of(name)
    if stages is None or stage is None:
        return whole(named[name])
    return stages.broadcast(whole(named[name]) if stage == stages.index else None, stage)


def own_weights(model: nn.Module, ranks: Ranks, *, stages: Stages | None) -> OrderedDict[str, Tensor]:
    """Return this rank's tensors as files store them; every rank calls this."""
    named = model.state_dict()
    if not ranks.is_divided:
        return OrderedDict((name, tensor.detach().cpu()) for name, tensor in named.items())
    names = tuple(named) if stages is None else stages.tensors
    return OrderedDict((name, flattened(gathered(named, name, stages=stages), ranks).cpu()) for name in names)


def own_state(optimizer: torch.optim.Optimizer, names: Sequence[str], *, ranks: Ranks, stages: Stages | None) -> Any:
    """Return this rank's optimizer state for its file; every rank calls this.

    Args:
        optimizer: over the parameters `names`.
        names: of the parameters of this rank's stage, in their order.
        ranks: the processes that hold the model.
        stages: the stages of the model, if it has several.
    """
    state = optimizer.state_dict()
    if not ranks.is_divided:
        return state
    own = {name: state["state"].get(number, {}) for number, name in enumerate(names)}
    keys = {name: {key: (value,) if _is_plain(value) else None for key, value in v.items()} for name, v in own.items()}
    every = tuple(names) if stages is None else stages.parameters
    plain = keys if stages is None else stages.of_all(keys)
    held = {f"{name}|{key}": value for name, values in own.items() for key, value in values.items()}
    result: dict[int, dict[str, Any]] = {}
    for number, name in enumerate(every):
        result[number] = {
            key: value[0] if value else flattened(gathered(held, f"{name}|{key}", stages=stages), ranks)
            for key, value in plain[name].items()
        }
    for group in state["param_groups"]:
        group["params"] = list(range(len(every)))
    state["state"] = {number: values for number, values in result.items() if values}
    return state


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.dim() == 0


def flattened(full: Shaped[Tensor, "whole *rest"], ranks: Ranks) -> Shaped[Tensor, "whole *rest"]:
    """Return `full` as files store it: this rank has a piece along dim 0."""
    from torch.distributed.tensor import DTensor, Shard

    own = _chunk(full, ranks.world, ranks.rank, 0).clone()
    return DTensor.from_local(
        own, ranks.flat_mesh(), [Shard(0)], run_check=False, shape=full.shape, stride=full.stride()
    )


@torch.no_grad()
def load_model_parts(parts: list[Mapping[str, Tensor]], model: nn.Module, *, stages: Stages | None = None) -> None:
    """Fill the model's tensors on this rank from what all ranks wrote.

    Raises:
        KeyError: a tensor is missing.
        ValueError: a tensor is there that the model does not have, or has another shape.
    """
    own = model.state_dict()
    more = sorted(parts[0].keys() - set(own if stages is None else stages.tensors))
    if more:
        raise ValueError(f"{len(more)} tensors are not the model's (first {more[0]})")
    for name, tensor in own.items():
        local(tensor).copy_(own_part(joined([part[name] for part in parts]), tensor))


def optimizer_state(
    parts: list[dict[str, Any]], optimizer: torch.optim.Optimizer, *, numbers: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the saved optimizer state, cut to this rank's parameters.

    Settings such as the decay of weights are the optimizer's own: what this run is configured with.

    Args:
        parts: what the ranks wrote.
        optimizer: over this rank's parameters.
        numbers: their indices in the whole model; None: this rank has all parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for place, number in enumerate(range(len(parameters)) if numbers is None else numbers):
        each = [part["state"][number] for part in parts if number in part["state"]]
        if each:
            state[place] = {key: _cut([of_rank[key] for of_rank in each], parameters[place]) for key in each[0]}
    groups = [group | {"params": list(range(len(parameters)))} for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def _cut(values: list[Any], like: Tensor) -> Any:
    """Return this rank's part of a state entry; a scalar is the same for all."""
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
