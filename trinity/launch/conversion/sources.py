"""Where the weights of a checkpoint are, and how they are read.

A checkpoint of ours or of veRL is a folder `global_step_N` with `actor/` and perhaps `critic/`. Each of these has the
shards of its ranks, or an adapter beside the model that it was trained on, or whole weights as safetensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trinity.common.constants import LORA_FOLDER
from trinity.common.errors import CheckpointError
from trinity.common.models.hub import model_folder
from trinity.common.models.shards import RankShards, has_shards
from trinity.common.models.utils import get_checkpoint_dir_with_step_num
from trinity.common.models.weights import has_safetensors, weight_files

HUGGINGFACE = "huggingface"
_STEP = re.compile(r"global_step_(\d+)")
_MEGATRON = ("dist_ckpt", "*.distcp", ".metadata", "mp_rank_*", "model/mp_rank_*", "iter_*")
_ADAPTER = "adapter_config.json"


class WeightSource(Protocol):
    """Weights by name, read when they are asked for.

    `like` has the names with tensors on the meta device, `files` what is read.
    """

    like: dict[str, Tensor]
    files: list[Path]

    def opened(self) -> AbstractContextManager[Mapping[str, Tensor]]:
        """Map the files into memory and give them free afterwards."""


class SafetensorsWeights:
    """The weights of a folder of Hugging Face.

    Args:
        folder: with `model.safetensors`, or several files and their index.

    Raises:
        CheckpointError: a file is missing or torn (E7052).
    """

    def __init__(self, folder: Path) -> None:
        self.files = [folder / name for name in weight_files(folder)]
        self.like = {}
        self._place: dict[str, Path] = {}
        for file in self.files:
            try:
                with safe_open(file, framework="pt") as opened:
                    for name in opened.keys():  # noqa: SIM118 (the file object is not iterable)
                        part = opened.get_slice(name)
                        dtype = opened.get_slice(name)[:0].dtype if part.get_shape() else opened.get_tensor(name).dtype
                        self.like[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
                        self._place[name] = file
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"cannot read {file}: {error}; copy it again", code="E7052") from error

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Tensor]]:
        """Read a tensor from its file when it is asked for."""
        yield _FromFiles(self._place)


class _FromFiles(Mapping[str, Tensor]):
    def __init__(self, place: Mapping[str, Path]) -> None:
        self._place = place

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._place[name], framework="pt") as opened:
            return opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


@dataclass(frozen=True)
class Located:
    """A part of a checkpoint.

    Attributes:
        folder: `global_step_N/actor`, `global_step_N/critic`, or another folder with shards.
        kind: what its weights are.
        step: N; None if the folder does not say it.
        job: the folder of a run of ours that it is of; None: of another program.
    """

    folder: Path
    kind: str
    step: int | None
    job: Path | None

    @property
    def huggingface(self) -> Path:
        """Folder of the configuration and the tokenizer, which may lack them."""
        inner = self.folder / HUGGINGFACE
        return inner if inner.is_dir() or not (self.folder / "config.json").is_file() else self.folder


def located(path: Path, *, part: str = "actor", step: int | None = None) -> Located:
    """Return the part of a checkpoint that a path names.

    Args:
        path: folder of a job, of a checkpoint `global_step_N`, or of one of its parts.
        part: `actor` or `critic`, where the path names more than one part.
        step: of the checkpoint; None: the newest of a job.

    Raises:
        CheckpointError: there is none (E7003), or it is in Megatron's own format (E7050).
    """
    folder = path.expanduser()
    if not folder.is_dir():
        raise CheckpointError(f"{path} is no folder; give a job, global_step_N, or its actor", code="E7003")
    if any(folder.glob("global_step_*")):
        folder = Path(str(get_checkpoint_dir_with_step_num(folder, step_num=step)[0]))
    if (folder / part).is_dir():
        folder = folder / part
    inside = [match for each in (folder, *folder.absolute().parents) if (match := _STEP.fullmatch(each.name))]
    number = int(inside[0][1]) if inside else None
    job = next((each.parent for each in folder.absolute().parents if _STEP.fullmatch(each.name)), None)
    is_ours = job is not None and (job / "config.yaml").is_file() and (job / "run.json").is_file()
    return Located(folder, _kind(folder), number, job if is_ours else None)


def _kind(folder: Path) -> str:
    if has_shards(folder):
        return "shards"
    if (folder / LORA_FOLDER / _ADAPTER).is_file():
        return "adapter"
    if any(has_safetensors(each) for each in (folder / HUGGINGFACE, folder)):
        return "weights"
    found = [pattern for pattern in _MEGATRON if any(folder.glob(pattern))]
    if found:
        raise CheckpointError(
            f"{folder} holds {found[0]}: the distributed checkpoint of Megatron, whose index is a pickle and whose "
            "matrices are fused and divided as Megatron's layers are; it is not read here. Write the checkpoint with "
            "`hf_model` among actor.checkpoint.save_contents, which adds huggingface/*.safetensors, or merge it with "
            "the program that wrote it, and give that folder",
            code="E7050",
        )
    raise CheckpointError(
        f"{folder} holds neither model_world_size_W_rank_R.pt, lora_adapter/ nor model.safetensors", code="E7003"
    )


def source_of(found: Located, *, base: str | None) -> WeightSource:
    """Return the weights of a part of a checkpoint, without an adapter merged.

    Args:
        found: the part.
        base: folder or hub id of the model that an adapter was trained on; None: as the adapter says.

    Raises:
        CheckpointError: they cannot be read.
    """
    if found.kind == "shards":
        return RankShards(found.folder)
    if found.kind == "adapter":
        return SafetensorsWeights(_base_folder(found.folder / LORA_FOLDER, base))
    inner = found.folder / HUGGINGFACE
    return SafetensorsWeights(inner if has_safetensors(inner) else found.folder)


def _base_folder(adapter: Path, base: str | None) -> Path:
    try:
        named = json.loads((adapter / _ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"cannot read {adapter / _ADAPTER}: {error}", code="E7056") from error
    wanted = base or named
    if not wanted:
        raise CheckpointError(
            f"{adapter} does not say on which model the adapter was trained; give it with --model", code="E7056"
        )
    try:
        folder = model_folder(str(wanted))
    except Exception as error:
        raise CheckpointError(
            f"the model {wanted}, on which the adapter {adapter} was trained, is not here: {error}; give its folder "
            "with --model",
            code="E7056",
        ) from error
    if not has_safetensors(folder):
        raise CheckpointError(f"{folder} has no weights in safetensors files to merge with {adapter}", code="E7056")
    return folder
