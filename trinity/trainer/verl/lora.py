"""Low-rank adapters through PEFT: made or read, merged, and saved.

    W = W0 + scale * B A

is the weight of an adapted linear layer (arXiv:2106.09685, section 4.1). The model's own weights W0 are frozen; other
components see merged weights under the model's own names. A new adapter is made from the seed.

```
actor/lora_adapter/adapter_config.json         as PEFT writes it
                   adapter_model.safetensors   A and B
      lora_train_meta.json                     rank, alpha, name, and the hash of the base model
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trinity.common.checkpoint import hash_tree
from trinity.common.config.model import LoraConfig
from trinity.common.constants import LORA_FOLDER
from trinity.common.errors import CheckpointError, ConfigError, EnvironmentProblem
from trinity.preflight.adapter import ADAPTER_FILES, ALL_LINEAR, check_adapter_dir, is_meant, near_name
from trinity.trainer.verl.parallel.exchange import local, whole
from trinity.trainer.verl.parallel.resharding import own_part
from trinity.utils.log import get_logger

logger = get_logger("trainer")

KEY = "model.lora_configs[0]"
META = "lora_train_meta.json"
CONFIG, WEIGHTS = ADAPTER_FILES
ADAPTER = "default"

# Options of an adapter beyond `scale * B A` in linear layers, each with the value that turns it off.
_PLAIN: dict[str, Any] = {
    "bias": "none", "use_dora": False, "lora_bias": False, "modules_to_save": None, "layer_replication": None,
    "target_parameters": None, "trainable_token_indices": None,
}  # fmt: skip
_PLAIN_INITS = (True, False, None, "gaussian", "orthogonal", "eva")  # the others change the base model, too


class MergedWeights(Mapping[str, Tensor]):
    """The weights by Hugging Face name, merged with the adapter when read.

    The next step changes them.

    Args:
        model: a model with an adapter in its linear layers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._adapted: dict[str, Any] = {
            f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, LoraLayer)
        }
        self._own = {
            name.replace(".base_layer.", "."): parameter
            for name, parameter in model.named_parameters()
            if not is_adapter_tensor(name)
        }

    def __getitem__(self, name: str) -> Tensor:
        weight = whole(self._own[name])
        if name not in self._adapted:
            return weight
        with torch.no_grad():
            merged: Tensor = weight + self._delta(self._adapted[name])
            return merged

    @staticmethod
    def _delta(module: Any) -> Tensor:
        """Return what the adapter adds to a weight [O, I]."""
        down, up = (layer[ADAPTER].weight for layer in (module.lora_A, module.lora_B))
        if not hasattr(down, "device_mesh"):
            added: Tensor = module.get_delta_weight(ADAPTER)
            return added
        product = whole(up) @ whole(down)
        return (product.T if module.fan_in_fan_out else product) * module.scaling[ADAPTER]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


@dataclass(frozen=True)
class Adapter:
    """The adapter in a model.

    Attributes:
        wrapped: PEFT's view of the model.
        model: the model itself, whose linear layers hold the adapter.
        name: name that the configuration gives it.
        is_fresh: made by this run, so that at its start it adds nothing.
        base_hash: hash of the base model's files; empty where the model is not a folder.
        path_hash: hash of the files of the adapter that it started from; empty for a fresh one.
    """

    wrapped: peft.PeftModel
    model: PreTrainedModel
    name: str
    is_fresh: bool
    base_hash: str
    path_hash: str

    @property
    def config(self) -> peft.LoraConfig:
        """PEFT's configuration of the adapter."""
        config = self.wrapped.peft_config[ADAPTER]
        assert isinstance(config, peft.LoraConfig), "attach() makes no other"
        return config

    def weights(self) -> MergedWeights:
        """Return the live weights with the adapter merged in."""
        return MergedWeights(self.model)

    def disabled(self) -> AbstractContextManager[None]:
        """Return a context in which the model's forward omits the adapter."""
        context: AbstractContextManager[None] = self.wrapped.disable_adapter()
        return context

    def tensors(self) -> dict[str, Tensor]:
        """Return A [r, I] and B [O, r] of each linear layer under PEFT's names.

        They are whole and on the CPU; every rank calls this.
        """
        state = get_peft_model_state_dict(self.wrapped, save_embedding_layers=False)
        return {name: whole(tensor).cpu().contiguous() for name, tensor in state.items()}

    def save(self, folder: Path, *, is_writer: bool = True) -> None:
        """Write the adapter into the actor's folder of a checkpoint.

        `PeftModel.from_pretrained` reads it. Every rank calls this, one of them as the writer.
        """
        target, tensors = folder / LORA_FOLDER, self.tensors()
        if not is_writer:
            return
        target.mkdir(parents=True)
        save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
        config = self.config
        values = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
        text = json.dumps(values | {"inference_mode": True}, indent=2, sort_keys=True, default=str)
        (target / CONFIG).write_text(text, encoding="utf-8")
        meta = {"r": config.r, "lora_alpha": config.lora_alpha, "task_type": "CAUSAL_LM", "name": self.name}
        text = json.dumps(meta | {"base_model_hash": self.base_hash}, indent=4)
        (folder / META).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote into the actor's folder `folder`.

        Raises:
            CheckpointError: the checkpoint is of another base model or another adapter.
        """
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        if meta["base_model_hash"] != self.base_hash:
            raise CheckpointError(
                f"{folder / LORA_FOLDER} was trained on other weights than those of model.model_path: its files "
                "changed; restore them, or set continue_from_checkpoint: false",
                code="E7020",
            )
        saved, own = load_file(folder / LORA_FOLDER / WEIGHTS), self.tensors()
        if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in own.items()}:
            raise CheckpointError(
                f"{folder / LORA_FOLDER} is an adapter of rank {meta['r']} in {len(saved) // 2} linear layers; {KEY} "
                f"makes one of rank {self.config.r} in {len(own) // 2}; write lora_rank and "
                "target_modules as they were, or set continue_from_checkpoint: false",
                code="E7020",
            )
        held = get_peft_model_state_dict(self.wrapped, save_embedding_layers=False)
        with torch.no_grad():
            for tensor_name, tensor in held.items():
                local(tensor).copy_(own_part(saved[tensor_name], tensor))


def is_adapter_tensor(name: str) -> bool:
    """Return whether a parameter's name is that of an adapter's A or B."""
    return ".lora_A." in name or ".lora_B." in name


def attach(model: PreTrainedModel, settings: LoraConfig, *, seed: int, base_hash: str) -> Adapter:
    """Freeze `model`, put an adapter into its linear layers, and return it.

    Args:
        model: weights in float32; its linear layers are replaced in place.
        settings: the adapter's section of the configuration.
        seed: of the initial A of a new adapter; its B is 0.
        base_hash: hash of the model's files.

    Raises:
        ConfigError: `target_modules` or `exclude_modules` names no linear layer of the model.
        EnvironmentProblem: the adapter of `path` cannot be read or does not fit.
    """
    path = None if settings.path is None else Path(settings.path).expanduser()
    config, tensors = (_new(settings), None) if path is None else _read(path)
    config.base_model_name_or_path = settings.base_model_name or model.config.name_or_path
    config.fan_in_fan_out = _check_targets(model, config)
    model.requires_grad_(False)
    device = next(model.parameters()).device
    is_host = device.type == "cpu"
    with torch.random.fork_rng([] if is_host else [device], device_type="cuda" if is_host else device.type):
        torch.manual_seed(seed)
        try:
            wrapped = peft.get_peft_model(model, config, adapter_name=ADAPTER)
        except ValueError as error:
            raise ConfigError(f"{KEY}: PEFT cannot make this adapter: {error}", code="E1871") from error
    if tensors is not None:
        _fill(wrapped, tensors, str(path))
    return Adapter(
        wrapped,
        model,
        settings.name or LORA_FOLDER,
        is_fresh=path is None,
        base_hash=base_hash,
        path_hash="" if path is None else hash_tree(path),
    )


def _new(settings: LoraConfig) -> peft.LoraConfig:
    def listed(value: str | tuple[str, ...] | None) -> str | list[str] | None:
        return list(value) if isinstance(value, tuple) else value

    return peft.LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=listed(settings.target_modules),
        exclude_modules=listed(settings.exclude_modules),
    )


def _read(folder: Path) -> tuple[peft.LoraConfig, dict[str, Tensor]]:
    """Return configuration and tensors of the adapter in `folder`."""
    for finding in check_adapter_dir(folder):
        raise EnvironmentProblem(finding.message, code=finding.code)
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise EnvironmentProblem(f"cannot read the adapter {KEY}.path {folder}: {error}", code="E3118") from error
    values = vars(config)
    more = [name for name, plain in _PLAIN.items() if (values.get(name) or plain) != plain]
    if values.get("init_lora_weights") not in _PLAIN_INITS:
        more.append(f"init_lora_weights {values['init_lora_weights']}")
    if not isinstance(config, peft.LoraConfig) or more:
        what = f"sets {', '.join(more)}" if more else f"is of type {config.peft_type}"
        raise EnvironmentProblem(
            f"{KEY}.path {folder} {what}; only plain LoRA in linear layers can be trained here", code="E3119"
        )
    if config.lora_dropout:
        logger.warning("%s.path: lora_dropout %g is not used; dropout is 0 in training", KEY, config.lora_dropout)
        config.lora_dropout = 0.0
    config.inference_mode, config.init_lora_weights = False, True  # A and B are filled in
    return config, tensors


def _fill(wrapped: peft.PeftModel, tensors: dict[str, Tensor], path: str) -> None:
    own = {name: tensor.shape for name, tensor in get_peft_model_state_dict(wrapped).items()}
    given = {name: tensor.shape for name, tensor in tensors.items()}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        first = wrong[0]
        raise EnvironmentProblem(
            f"{KEY}.path {path} does not fit model.model_path: {len(wrong)} tensors differ, first {first}: the model "
            f"takes {tuple(own.get(first, ())) or 'none'}, the adapter has {tuple(given.get(first, ())) or 'none'}",
            code="E3119",
        )
    set_peft_model_state_dict(wrapped, tensors)


def _check_targets(model: PreTrainedModel, config: peft.LoraConfig) -> bool:
    """Check the module names; return whether weights are transposed."""
    output = model.get_output_embeddings()
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not output}
    others = [n for n, m in model.named_modules() if n and not isinstance(m, nn.Linear | Conv1D) or m is output]
    for key, written in (("target_modules", config.target_modules), ("exclude_modules", config.exclude_modules)):
        for pattern in [written] if isinstance(written, str) else sorted(written or ()):
            if pattern == ALL_LINEAR and key == "target_modules":
                continue
            is_whole = isinstance(written, str)
            if not any(_matches(pattern, name, is_whole=is_whole, key=key) for name in linear):
                raise _no_match(key, pattern, linear, is_regex=is_whole)
            wrong = [name for name in others if _matches(pattern, name, is_whole=is_whole, key=key)]
            if wrong and key == "target_modules":
                raise ConfigError(
                    f"{KEY}.{key}: {pattern!r} matches {wrong[0]}, which is no linear layer inside the model; an "
                    f"adapter goes into linear layers: {_names(linear)}",
                    code="E1871",
                )
    return any(isinstance(module, Conv1D) for module in linear.values())


def _matches(pattern: str, name: str, *, is_whole: bool, key: str) -> bool:
    """Match a name by PEFT's rule: a regular expression, or a list of ends."""
    try:
        return is_meant(pattern, name, is_whole=is_whole)
    except re.error as error:
        raise ConfigError(f"{KEY}.{key}: {pattern!r} is not a regular expression ({error})", code="E1871") from error


def _no_match(key: str, pattern: str, linear: Mapping[str, nn.Module], *, is_regex: bool) -> ConfigError:
    hint = f"; a string is a regular expression of whole names such as {next(iter(linear))}: write a list" * is_regex
    return ConfigError(
        f"{KEY}.{key}: {pattern!r} matches no linear layer of the model; there are "
        f"{near_name(pattern, [*linear])}{hint}",
        code="E1871",
    )


def _names(linear: Mapping[str, nn.Module]) -> str:
    return ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
