"""Weights on their way into vLLM's processes: a file in memory that ends with its descriptor, and its digest."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from torch import Tensor

from trinity.common.config.model import ModelConfig
from trinity.common.errors import EnvironmentProblem
from trinity.common.models.model_config import read_model_config
from trinity.common.models.torch_engine.weights import check_names, has_safetensors, model_folder, read_shapes

_HEAD = "lm_head.weight"
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True)
class ModelFacts:
    """What the engine needs to know of a model beside its weights.

    Attributes:
        folder: of the model.
        shapes: names and shapes of the weights that an update must have.
        optional: names that an update may have, whose tensors are those of other names.
        text_config: sizes of the language model.
        changed: entries of the model's configuration that `override_config` changes, each as a whole.
    """

    folder: Path
    shapes: Mapping[str, torch.Size]
    optional: Set[str]
    text_config: object
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the output head."""
        return int(self.text_config.vocab_size)  # type: ignore[attr-defined]


def read_facts(model: ModelConfig, overrides: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of `model`, made as `override_config` says.

    Raises:
        EnvironmentProblem: no such model, or its weights are in no safetensors files (E3101).
    """
    folder = model_folder(model.model_path)
    if not has_safetensors(folder):
        raise EnvironmentProblem(
            f"model.model_path {model.model_path!r}: the vLLM engine reads names and shapes from model.safetensors, "
            "and the folder has none; save the model with save_pretrained, or use "
            "--set explorer.rollout_model.engine_type=torch",
            code="E3101",
        )
    config = read_model_config(str(folder), overrides, trust_remote_code=model.trust_remote_code)
    optional = {_HEAD} if config.get_text_config().tie_word_embeddings else set()
    shapes = {name: shape for name, shape in read_shapes(folder).items() if name not in optional}
    values = config.to_dict()
    return ModelFacts(folder, shapes, optional, config.get_text_config(), {name: values[name] for name in overrides})


@contextmanager
def written_weights(
    weights: Mapping[str, Tensor], facts: ModelFacts, *, dtype: torch.dtype, source: str
) -> Iterator[tuple[str, str]]:
    """Yield path and digest of a safetensors file in main memory with `weights` in the engine's number type.

    The file has no name in a folder: it is gone when this process is, however that ends.

    Raises:
        SyncError: names or shapes differ from the model's (E5501).
    """
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    check_names(facts.shapes, shapes, optional=facts.optional, source=source)
    with os.fdopen(os.memfd_create("trinity-weights"), "wb") as file:
        digest = _write(file, {name: weights[name] for name in sorted(facts.shapes)}, dtype)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}", digest


def _write(file: BinaryIO, weights: Mapping[str, Tensor], dtype: torch.dtype) -> str:
    """Write `weights` in the format of safetensors, one at a time, and return the digest of all bytes.

    The library itself writes beside its target and renames, which a file without a name does not allow.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in weights.items():
        start, end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = xxhash.xxh3_128()
    for part in itertools.chain([len(text).to_bytes(8, "little"), text], _bytes(weights.values(), dtype)):
        file.write(part)
        digest.update(part)
    return digest.hexdigest()


def _bytes(tensors: Iterable[Tensor], dtype: torch.dtype) -> Iterator[Any]:
    """Yield the memory of each tensor in `dtype`, as a buffer."""
    for tensor in tensors:
        yield tensor.detach().to("cpu", dtype).contiguous().reshape(-1).view(torch.uint8).numpy()
