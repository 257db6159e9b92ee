"""Conversion of weights from the names of modules to those of files.

Transformers joins and renames weights when it reads a folder (the experts of a layer become one tensor) and reverts
that when it saves. The trainer publishes the weights of its modules; vLLM reads those of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from trinity.common.errors import EnvironmentProblem
from trinity.common.models.vision import is_vision
from trinity.common.models.weights import read_shapes

_LAYER = re.compile(r"^.*?\.\d+\.")


class CheckpointNames:
    """Names and shapes of a model's weights, in its modules and its files.

    Args:
        folder: folder of the model.
        config: configuration of the model, with the entries that the run overrides.
        trust_remote_code: run Python code that comes with the model.

    Attributes:
        parameters: name and shape of each weight that training changes; a tied weight once.
        optional: names whose tensors are those of other names.
        written: name and shape of the parameters in files, in the order of `reverted`.
        constant: names in the folder that come from no parameter: buffers, and parts that the model leaves out.

    Raises:
        EnvironmentProblem: transformers has no causal language model of this family (E3101), or would save the weights
            differently from how the folder has them (E3225).
    """

    def __init__(self, folder: Path, config: PreTrainedConfig, *, trust_remote_code: bool = False) -> None:
        in_files = read_shapes(folder)
        self._model = _skeleton(folder, in_files, config, trust_remote_code=trust_remote_code)
        named: dict[str, Tensor] = dict(self._model.state_dict(keep_vars=True))
        every: dict[str, Tensor] = {
            name: tensor for name, tensor in named.items() if isinstance(tensor, torch.nn.Parameter)
        }
        held = {name: tensor.detach() for name, tensor in self._model.named_parameters()}
        self.parameters = {name: tensor.shape for name, tensor in held.items()}
        self.optional = named.keys() - held.keys()
        self._saved_as = {self._saved_name(name, every, in_files): name for name in held}
        whole = dict(self._reverted(held, list(self._saved_as)))
        self._groups = [list(names) for _, names in groupby(self._saved_as, _group_of)]
        parts = {name: t for names in self._groups for name, t in self._reverted(held, names)}
        if {n: t.shape for n, t in parts.items()} != {n: t.shape for n, t in whole.items()}:
            self._groups, parts = [list(self._saved_as)], whole
        self.written = {name: tensor.shape for name, tensor in parts.items()}
        self.constant = in_files.keys() - revert_weight_conversion(self._model, every).keys()
        _check(self.written, in_files, folder=folder, kind=config.model_type)

    def _saved_name(self, name: str, every: Mapping[str, Tensor], in_files: Mapping[str, torch.Size]) -> str:
        """Return the name under which the folder has a (possibly tied) parameter."""
        names = [other for other, tensor in every.items() if tensor is every[name]]
        is_saved = (revert_weight_conversion(self._model, {n: every[n]}).keys() <= in_files.keys() for n in names)
        return next((n for n, is_there in zip(names, is_saved, strict=True) if is_there), name) if names[1:] else name

    def reverted(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of `weights` as files have them.

        `weights` has the names and shapes of `parameters`. One layer is converted at a time, so a second copy of the
        model never exists.
        """
        for names in self._groups:
            yield from self._reverted(weights, names)

    def _reverted(self, weights: Mapping[str, Tensor], names: list[str]) -> Iterator[tuple[str, Tensor]]:
        held = {name: weights[self._saved_as[name]] for name in names}
        yield from revert_weight_conversion(self._model, held).items()


def _group_of(name: str) -> str:
    """Return the layer prefix shared by weights that are converted together."""
    found = _LAYER.match(name)
    return "" if found is None else found.group()


def _skeleton(
    folder: Path, in_files: Mapping[str, torch.Size], config: PreTrainedConfig, *, trust_remote_code: bool
) -> Any:
    """Return a folder's model without memory, for its weight conversions."""
    try:
        with torch.device("meta"):
            auto = AutoModelForImageTextToText if is_vision(config) else AutoModelForCausalLM
            kind: Any = type(auto.from_config(config, trust_remote_code=trust_remote_code))
        empty = {name: torch.empty(shape, device="meta") for name, shape in in_files.items()}
        return kind.from_pretrained(None, config=config, state_dict=empty, device_map="meta", dtype=torch.float32)
    except (OSError, ValueError, RuntimeError) as error:
        raise EnvironmentProblem(f"cannot read the model in {folder}: {error}", code="E3101") from error


def _check(written: Mapping[str, torch.Size], in_files: Mapping[str, torch.Size], *, folder: Path, kind: str) -> None:
    wrong = [name for name, shape in written.items() if in_files.get(name) != shape]
    if wrong:
        raise EnvironmentProblem(
            f"the vLLM engine cannot take new weights of this {kind} model: transformers would save "
            f"{wrong[0]} as {list(written[wrong[0]])}, and {folder} has "
            f"{list(in_files[wrong[0]]) if wrong[0] in in_files else 'no such weight'}; save the folder again with "
            "save_pretrained, or use --set explorer.rollout_model.engine_type=torch",
            code="E3225",
        )
