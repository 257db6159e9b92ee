"""What an exported model consists of, known before a weight is read.

The model of the configuration, without weights, says which tensors there must be, which of them are one (a tied output
layer), and under which names and in which shapes transformers writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from trinity.common.errors import CheckpointError

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Structure:
    """The tensors of an exported model.

    Attributes:
        like: their names and shapes in the files, on the meta device.
        units: names of tensors of the checkpoint that are converted together, with those that they become.
        tied: names that are left out, as they are one with another, by that other name.
        cut: rows that stay of embeddings with more rows than the vocabulary.
        model: the model without weights; None where tensors stay as they are.
    """

    like: dict[str, Tensor]
    units: dict[tuple[str, ...], tuple[str, ...]]
    tied: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    model: PreTrainedModel | None = None

    def unit_of(self) -> dict[str, tuple[str, ...]]:
        """Return the tensors of the checkpoint behind each exported name."""
        return {name: names for names, made in self.units.items() for name in made}

    def convert(self, names: tuple[str, ...], weights: Tensors) -> dict[str, Tensor]:
        """Return the exported tensors, of any shape, of a unit."""
        held = {name: weights[name][: self.cut[name]] if name in self.cut else weights[name] for name in names}
        return held if self.model is None else dict(revert_weight_conversion(self.model, held))


def as_it_is(like: Tensors) -> Structure:
    """Return the structure of weights that are in a model's own files."""
    return Structure(dict(like), {(name,): (name,) for name in like})


def empty_model(folder: Path, *, trust_remote_code: bool) -> PreTrainedModel:
    """Return the model of a folder's `config.json`, without weights.

    Raises:
        CheckpointError: there is no such configuration, or no model of it (E7051).
    """
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        names = getattr(config, "architectures", None) or ()
        known: Any = getattr(transformers, names[0], None) if names else None
        with torch.device("meta"):
            if known is not None and issubclass(known, PreTrainedModel):
                return known(config)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
            return model
    except (OSError, ValueError, ImportError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the model of {folder / 'config.json'} cannot be made: {error}; give the folder of the model that was "
            "trained with --model (and --trust-remote-code if it comes with Python code that you have read)",
            code="E7051",
        ) from error


def is_transposed(model: nn.Module) -> bool:
    """Return whether the model keeps weights as [inputs, outputs]."""
    return any(isinstance(module, Conv1D) for module in model.modules())


def structure_of(like: Tensors, model: PreTrainedModel, *, where: Path) -> Structure:
    """Return what the tensors of a checkpoint become.

    Args:
        like: the tensors of the checkpoint under the model's names.
        model: without weights.
        where: the checkpoint, for messages.

    Raises:
        CheckpointError: the tensors are not those of the model (E7053).
    """
    own = model.state_dict()
    tied = {name: other for name, other in _tied(model).items() if name in like and other in like}
    cut = {name: len(own[name]) for name in _tables(model, own) if _has_more_rows(like.get(name), own[name])}
    _check_names(like, own, tied=_tied(model), cut=cut, where=where)
    kept = {
        name: torch.empty(
            (cut[name], *tensor.shape[1:]) if name in cut else tensor.shape, dtype=tensor.dtype, device="meta"
        )
        for name, tensor in like.items()
        if name not in tied
    }
    whole = {name: _meta(tensor) for name, tensor in revert_weight_conversion(model, dict(kept)).items()}
    return Structure(whole, _units(kept, whole, model), tied, cut, model)


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _tied(model: PreTrainedModel) -> dict[str, str]:
    """Return the names of parameters that the model has under another one."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            tied[name] = other
    return tied


def _tables(model: PreTrainedModel, own: Tensors) -> list[str]:
    """Return the names of the tensors with a row for each token."""
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    modules = dict(model.named_modules(remove_duplicate=False))
    names = [name for name, module in modules.items() if any(module is layer for layer in layers)]
    return [f"{name}.{kind}" for name in names for kind in ("weight", "bias") if f"{name}.{kind}" in own]


def _has_more_rows(tensor: Tensor | None, own: Tensor) -> bool:
    return tensor is not None and tensor.dim() > 0 and len(tensor) > len(own) and tensor.shape[1:] == own.shape[1:]


def _check_names(like: Tensors, own: Tensors, *, tied: Mapping[str, str], cut: Mapping[str, int], where: Path) -> None:
    if any(name.startswith("v_head.") for name in like):
        raise CheckpointError(
            f"{where} holds a value head of TRL (v_head), which no class of transformers loads; train the critic as a "
            "token classifier with one label",
            code="E7053",
        )
    missing = sorted(own.keys() - like.keys() - tied.keys())
    more = sorted(like.keys() - own.keys())
    wrong = [name for name in own.keys() & like.keys() if own[name].shape != like[name].shape and name not in cut]
    told = [
        f"{len(names)} {what} (first {names[0]})" for names, what in ((missing, "missing"), (more, "unknown")) if names
    ]
    told += [f"{name} is {list(like[name].shape)} and must be {list(own[name].shape)}" for name in sorted(wrong)[:1]]
    if told:
        raise CheckpointError(
            f"the tensors of {where} are not those of its config.json: {'; '.join(told)}; give the folder of the model "
            "that was trained with --model",
            code="E7053",
        )


def _units(kept: Tensors, whole: Tensors, model: PreTrainedModel) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the smallest groups whose conversions give the whole model's."""
    alone = [(name,) for name in kept]
    layers: dict[str, list[str]] = {}
    for name in kept:
        layers.setdefault(_layer(name), []).append(name)
    for groups in (alone, [tuple(names) for names in layers.values()], [tuple(kept)]):
        made: dict[tuple[str, ...], tuple[str, ...]] = {}
        shapes: dict[str, torch.Size] = {}
        try:
            for names in groups:
                result = revert_weight_conversion(model, {name: kept[name] for name in names})
                made[names] = tuple(result)
                shapes |= {name: tensor.shape for name, tensor in result.items()}
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError):
            continue
        if shapes == {name: tensor.shape for name, tensor in whole.items()}:
            return made
    raise AssertionError("the whole model is converted as it is")


def _layer(name: str) -> str:
    """Return the name up to the number of its layer."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else name
