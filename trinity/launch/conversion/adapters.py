"""Weights with an adapter merged.

    W = W0 + scale * B A

of a linear layer whose matrices A and B are in a folder that PEFT wrote (ours), or among the shards (veRL's).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trinity.common.checkpoint import hash_tree
from trinity.common.constants import LORA_FOLDER
from trinity.common.errors import CheckpointError
from trinity.launch.conversion.sources import Located, SafetensorsWeights, WeightSource

META = "lora_train_meta.json"
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])(?:\.\w+)?\.weight")


@dataclass(frozen=True)
class AdapterPair:
    """Names of the two matrices of an adapted linear layer."""

    down: str
    up: str


class AdaptedWeights:
    """The weights of a source, with an adapter merged when they are read.

    Args:
        source: the model's own weights, and the adapter's where these are beside them.
        names: name of each weight in the source, by its name in the model.
        pairs: the adapter's matrices, by the name of the weight.
        scale: factor of the product.
        matrices: the adapter where it is apart; None: it is in the source.
        is_transposed: weights are kept as [inputs, outputs].
    """

    def __init__(
        self,
        source: WeightSource,
        names: Mapping[str, str],
        pairs: Mapping[str, AdapterPair],
        *,
        scale: float,
        matrices: Mapping[str, Tensor] | None,
        is_transposed: bool,
    ) -> None:
        self.files = source.files
        self.like = {name: source.like[inner] for name, inner in names.items()}
        self.pairs = dict(pairs)
        self._source, self._names, self._scale = source, dict(names), scale
        self._matrices, self._is_transposed = matrices, is_transposed

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Tensor]]:
        """Map the files of the source; merge a weight when it is read."""
        with self._source.opened() as weights:
            yield _Merging(self, weights)

    def merged(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        """Return a weight, of any shape, with what the adapter adds."""
        weight, pair = weights[self._names[name]], self.pairs.get(name)
        if pair is None:
            return weight
        held = weights if self._matrices is None else self._matrices
        product = held[pair.up].float() @ held[pair.down].float()
        added = (product.T if self._is_transposed else product) * self._scale
        if added.shape != weight.shape:
            raise CheckpointError(
                f"the adapter adds a matrix {list(added.shape)} to {name} {list(weight.shape)}", code="E7056"
            )
        return (weight.float() + added).to(weight.dtype)


class _Merging(Mapping[str, Tensor]):
    def __init__(self, merged: AdaptedWeights, weights: Mapping[str, Tensor]) -> None:
        self._merged, self._weights = merged, weights

    def __getitem__(self, name: str) -> Tensor:
        return self._merged.merged(self._weights, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._merged.like)

    def __len__(self) -> int:
        return len(self._merged.like)


def with_adapter(source: WeightSource, found: Located, *, is_transposed: bool) -> WeightSource:
    """Return the weights with the adapter of the checkpoint merged, if any.

    Args:
        source: the model's own weights.
        found: the part of the checkpoint.
        is_transposed: the model keeps weights as [inputs, outputs].

    Raises:
        CheckpointError: it cannot be merged (E7056).
    """
    if found.kind == "adapter":
        return _apart(source, found.folder, is_transposed=is_transposed)
    if not any(_MATRIX.fullmatch(name) for name in source.like):
        return source
    names, pairs = _split(source.like)
    file = found.folder / META
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        scale = float(meta["lora_alpha"]) / int(meta["r"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"{found.folder} holds an adapter, and {file.name}, which says its scale (lora_alpha, r), cannot be read: "
            f"{error}; copy it beside the shards",
            code="E7056",
        ) from error
    return AdaptedWeights(source, names, pairs, scale=scale, matrices=None, is_transposed=is_transposed)


def _apart(source: WeightSource, folder: Path, *, is_transposed: bool) -> WeightSource:
    adapter = folder / LORA_FOLDER
    try:
        config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        matrices = load_file(adapter / "adapter_model.safetensors")
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the adapter {adapter}: {error}", code="E7056") from error
    more = [
        key for key in ("rank_pattern", "alpha_pattern", "use_dora", "modules_to_save", "lora_bias") if config.get(key)
    ]
    if more:
        raise CheckpointError(f"the adapter {adapter} sets {more[0]}, which is not merged here; use PEFT", code="E7056")
    _check_base(source, folder, adapter)
    _, pairs = _split(matrices)
    lacking = sorted(name for name in pairs if name not in source.like)
    if lacking:
        raise CheckpointError(
            f"the adapter {adapter} changes {lacking[0]}, which the model it was trained on does not have under that "
            "name; merge it with PEFT",
            code="E7056",
        )
    names = {name: name for name in source.like}
    return AdaptedWeights(source, names, pairs, scale=scale, matrices=matrices, is_transposed=is_transposed)


def _check_base(source: WeightSource, folder: Path, adapter: Path) -> None:
    """Check that an adapter is merged with the files it was trained on."""
    file = folder / META
    wanted = json.loads(file.read_text(encoding="utf-8")).get("base_model_hash") if file.is_file() else None
    base = source.files[0].parent
    if wanted and isinstance(source, SafetensorsWeights) and hash_tree(base) != wanted:
        raise CheckpointError(
            f"the adapter {adapter} was trained on other files than those of {base}; give their folder with --model",
            code="E7056",
        )


def _split(like: Mapping[str, Tensor]) -> tuple[dict[str, str], dict[str, AdapterPair]]:
    """Return the model's own names with those of the source, and the pairs."""
    names: dict[str, str] = {}
    halves: dict[str, dict[str, str]] = {}
    for name in like:
        plain = name.removeprefix(_PREFIX)
        if (match := _MATRIX.fullmatch(plain)) is not None:
            halves.setdefault(f"{match['module']}.weight", {})[match["which"]] = name
        else:
            names[plain.replace(".base_layer.", ".")] = name
    broken = sorted(name for name, half in halves.items() if half.keys() != {"A", "B"})
    if broken:
        raise CheckpointError(f"the adapter has only one of the two matrices of {broken[0]}", code="E7056")
    return names, {name: AdapterPair(half["A"], half["B"]) for name, half in halves.items()}
