"""Weights by Hugging Face name: reading from a folder, copying in place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from trinity.common.errors import SyncError
from trinity.common.models.hub import INDEX, SINGLE


def has_safetensors(folder: Path) -> bool:
    """Return whether the folder's weights are in safetensors files."""
    return (folder / INDEX).is_file() or (folder / SINGLE).is_file()


def read_tensors(folder: Path, *, only: Set[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of a folder's weights, one at a time.

    The tensors have any shape. With `only`, yield just the weights of those names.
    """
    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (the file object is not iterable)
                if only is None or key in only:
                    yield key, file.get_tensor(key)


def read_shapes(folder: Path) -> dict[str, torch.Size]:
    """Return names and shapes of a folder's weights, from the file headers."""
    shapes: dict[str, torch.Size] = {}
    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (the file object is not iterable)
                shapes[key] = torch.Size(file.get_slice(key).get_shape())
    return shapes


def weight_files(folder: Path) -> list[str]:
    """Return the names of the folder's safetensors files, in their order."""
    if not (folder / INDEX).is_file():
        return [SINGLE]
    return sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))


def check_names(
    shapes: Mapping[str, torch.Size], weights: Mapping[str, torch.Size], *, optional: Set[str], source: str
) -> None:
    """Verify that `weights` has exactly the names and shapes of `shapes`.

    Names in `optional` may be present as well.

    Raises:
        SyncError: the message counts what is missing and unexpected and names the first of each (E5505).
    """
    missing = sorted(shapes.keys() - weights.keys())
    unexpected = sorted(weights.keys() - shapes.keys() - optional)
    if missing or unexpected:
        parts = [f"{len(missing)} missing ({missing[0]}, ...)"] if missing else []
        parts += [f"{len(unexpected)} unexpected ({unexpected[0]}, ...)"] if unexpected else []
        raise SyncError(
            f"{source}: the names of the weights do not fit the model: {', '.join(parts)}; the trainer and the "
            "explorer must hold the same architecture (model.model_path)",
            code="E5505",
        )
    for name, shape in shapes.items():
        if weights[name] != shape:
            raise SyncError(
                f"{source}: weight {name} must have the shape {list(shape)}, got {list(weights[name])}", code="E5505"
            )


def copy_weights(
    targets: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, optional: Set[str], source: str
) -> None:
    """Copy all `weights` into `targets` in place; share no memory.

    Data type and device are converted. Names and shapes are verified before the first copy, so a refusal changes
    nothing.

    Raises:
        SyncError: names or shapes differ (E5505).
    """
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    check_names({n: t.shape for n, t in targets.items()}, shapes, optional=optional, source=source)
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(weights[name])
