"""Weights for vLLM's processes: a nameless file in memory, and its digest."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from torch import Tensor

from trinity.common.config.model import ModelConfig
from trinity.common.errors import EnvironmentProblem
from trinity.common.models.families import vllm_problem
from trinity.common.models.hub import model_folder
from trinity.common.models.model_config import read_model_config
from trinity.common.models.vision import is_vision
from trinity.common.models.weights import check_names, has_safetensors, read_tensors
from trinity.engine.vllm.checkpoint_names import CheckpointNames

# Names of the data types in files of safetensors.
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


@dataclass(frozen=True)
class ModelFacts:
    """What the engine needs to know of a model, apart from its weights.

    Attributes:
        folder: folder of the model.
        names: names of its weights; None if they stay as loaded.
        text_config: sizes of the language model.
        model_type: family of the model.
        changed: top-level entries of the model's configuration that `override_config` changes.
        image_token: token that stands for a part of an image; None: the model reads none here.
        merge_size: patches of such a part, in each direction.
    """

    folder: Path
    names: CheckpointNames | None
    text_config: object
    model_type: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    image_token: int | None = None
    merge_size: int = 1

    @property
    def vocab_size(self) -> int:
        """Number of rows of the output head."""
        return int(self.text_config.vocab_size)  # type: ignore[attr-defined]


def read_facts(
    model: ModelConfig, overrides: Mapping[str, Any], *, is_updated: bool = True, is_cpu: bool = False
) -> ModelFacts:
    """Return the facts of `model` with `override_config` applied.

    Args:
        model: section of the configuration.
        overrides: `override_config`.
        is_updated: its weights will be replaced.
        is_cpu: vLLM computes on a CPU.

    Raises:
        EnvironmentProblem: no such model, or its weights are in no safetensors files (E3101), or new weights cannot be
            named as in its files (E3225), or vLLM computes its family differently from transformers (E3227).
    """
    folder = model_folder(model.model_path)
    if not has_safetensors(folder):
        raise EnvironmentProblem(
            f"model.model_path {model.model_path!r}: the vLLM engine reads names and shapes from model.safetensors, "
            "and the folder has none; save the model with save_pretrained, or use "
            "--set explorer.rollout_model.engine_type=torch",
            code="E3101",
        )
    config: Any = read_model_config(str(folder), overrides, trust_remote_code=model.trust_remote_code)
    problem = vllm_problem(config.model_type, is_cpu=is_cpu) if is_updated else None
    if problem is not None:
        raise EnvironmentProblem(f"model.model_path {model.model_path!r}: {problem}", code="E3227")
    trusted = model.trust_remote_code
    names = CheckpointNames(folder, config, trust_remote_code=trusted) if is_updated else None
    values = config.to_dict()
    changed = {name: values[name] for name in overrides}
    facts = ModelFacts(folder, names, config.get_text_config(), config.model_type, changed)
    if not is_vision(config):
        return facts
    merge = int(config.vision_config.spatial_merge_size)
    return replace(facts, image_token=int(config.image_token_id), merge_size=merge)


@contextmanager
def written_weights(
    weights: Mapping[str, Tensor], facts: ModelFacts, *, dtype: torch.dtype, source: str
) -> Iterator[tuple[str, str]]:
    """Yield path and digest of a safetensors file in memory with `weights`.

    It holds what the model's folder would hold. The file has no name in a folder, so it disappears with this process,
    however that ends.

    Args:
        weights: tensors of the model's shapes, by the names of its modules.
        facts: facts of the model.
        dtype: data type of the weights in the file; weights that training does not change keep that of the folder.
        source: source of the weights, for the message.

    Raises:
        SyncError: names or shapes differ from the model's (E5505).
    """
    names = facts.names
    assert names is not None, "the weights of an auxiliary model stay as loaded"
    check_names(
        names.parameters,
        {name: tensor.shape for name, tensor in weights.items()},
        optional=names.optional,
        source=source,
    )
    constant = dict(read_tensors(facts.folder, only=names.constant))
    entries = {name: (dtype, shape) for name, shape in names.written.items()}
    entries |= {name: (tensor.dtype, tensor.shape) for name, tensor in constant.items()}
    converted = ((name, tensor.to("cpu", dtype)) for name, tensor in names.reverted(weights))
    with os.fdopen(os.memfd_create("trinity-weights"), "wb") as file:
        digest = _write(file, entries, itertools.chain(converted, constant.items()))
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}", digest


def _write(
    file: BinaryIO,
    entries: Mapping[str, tuple[torch.dtype, torch.Size]],
    tensors: Iterable[tuple[str, Tensor]],
) -> str:
    """Write `tensors` in safetensors format; return the digest of all bytes.

    They are written one at a time. The library writes to a second file and renames it, which a file without a name does
    not allow.

    Args:
        file: the file to write.
        entries: data type and shape of each tensor, in the order of `tensors`.
        tensors: name and tensor, on the CPU.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in entries.items():
        start, end = end, end + shape.numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = xxhash.xxh3_128()
    places = iter(entries)
    for part in itertools.chain([len(text).to_bytes(8, "little"), text], (_bytes(t, n, places) for n, t in tensors)):
        file.write(part)
        digest.update(part)
    return digest.hexdigest()


def _bytes(tensor: Tensor, name: str, places: Iterator[str]) -> Any:
    """Return the memory of a tensor, the next of the file, as a buffer."""
    expected = next(places)
    assert name == expected, f"{name} comes where {expected} has its place"
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
