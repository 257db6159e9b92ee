"""A trained model's part of a checkpoint, in veRL's layout.

```
actor/model_world_size_W_rank_r.pt        weights by Hugging Face name; of W > 1 ranks each one's part, as DTensors
      optim_world_size_W_rank_r.pt        optimizer state
      extra_state_world_size_W_rank_r.pt  schedule and random generators, as tensors and integers; veRL reads them
      lora_adapter/                       with an adapter, in the place of model_...: see `lora`
      fsdp_config.json                    world size
      huggingface/                        config and tokenizer; model.safetensors on request
critic/                                   the same, if there is a critic
```
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._weights_only_unpickler import UnpicklingError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trinity.common.constants import LORA_FOLDER, PROCESSOR
from trinity.common.errors import CheckpointError
from trinity.common.models.model_config import config_to_save
from trinity.common.models.shards import joined, shard_name
from trinity.common.tensor_files import write_tensors_to
from trinity.trainer.verl.parallel.pipeline import Stages
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.parallel.resharding import (
    gathered,
    load_model_parts,
    optimizer_state,
    own_state,
    own_weights,
    read_parts,
    saved_world,
)
from trinity.trainer.verl.random_state import random_state, restore_random_state
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.trainer.verl.lora import Adapter

logger = get_logger("trainer")

HUGGINGFACE = "huggingface"
PARTS = ("model", "optimizer", "extra")


def save_trained(
    folder: Path,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    extra: dict[str, Any],
    *,
    tokenizer: PreTrainedTokenizerBase | None,
    hf: bool,
    adapter: Adapter | None = None,
    ranks: Ranks = ALONE,
    strategy: str = "unrestricted",
    contents: Sequence[str] = PARTS,
    stages: Stages | None = None,
) -> None:
    """Write the files of a trained model into the new folder `folder`.

    Every rank calls this.

    Args:
        folder: `global_step_N/actor` or `global_step_N/critic`.
        model: the policy, or the value model.
        optimizer: over its parameters.
        extra: schedule and other plain state; the random generators are added.
        tokenizer: saved beside the configuration.
        hf: write the weights as safetensors too, in their own data type and with the adapter merged.
        adapter: the trained part of the model, if that is an adapter.
        ranks: the processes that hold the model.
        strategy: which ranks may write at the same time (`trainer.save_strategy`).
        contents: parts to write (`checkpoint.save_contents`); `hf_model` means as `hf`.
        stages: the stages of the model, if it has several.
    """
    name = partial(shard_name, world=ranks.world, rank=ranks.rank)
    if ranks.is_first:
        folder.mkdir(parents=True)
    ranks.barrier()
    if adapter is not None and "model" in contents:
        adapter.save(folder, is_writer=ranks.is_first)

    kinds = [kind for kind in contents if kind != "model" or adapter is None]
    own = partial(_own_parts, model, optimizer, kinds, ranks=ranks, stages=stages)
    together = own() if ranks.is_divided else None  # all ranks have to take part

    def write_own() -> None:
        for kind, part in (own() if together is None else together).items():
            write_tensors_to(folder / name(kind), part)
        if "extra" in contents:
            write_tensors_to(folder / name("extra_state"), extra | {"rng": random_state()})

    in_turns(write_own, ranks, strategy)
    full: dict[str, Tensor] | None = {}
    if hf or "hf_model" in contents:
        full = None if ranks.is_alone and adapter is None else full_weights(model, adapter, ranks, stages=stages)
    if ranks.is_first:
        version = 1 if ranks.is_alone else 2
        text = json.dumps({"FSDP_version": version, "world_size": ranks.world}, indent=4)
        (folder / "fsdp_config.json").write_text(text, encoding="utf-8")
        _save_huggingface(folder / HUGGINGFACE, model, tokenizer, full)
    ranks.barrier()


def _own_parts(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    contents: Sequence[str],
    *,
    ranks: Ranks,
    stages: Stages | None,
) -> dict[str, Any]:
    """Return the wanted parts of this rank by the names of their files."""
    parts: dict[str, Any] = {}
    if "model" in contents:
        parts["model"] = own_weights(model, ranks, stages=stages)
    if "optimizer" in contents:
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        parts["optim"] = own_state(optimizer, names, ranks=ranks, stages=stages)
    return parts


def in_turns(write: Callable[[], None], ranks: Ranks, strategy: str) -> None:
    """Call `write` on all ranks: at once, node by node, or rank by rank."""
    if ranks.is_alone or strategy == "unrestricted":
        write()
        return
    places = ranks.gather(socket.gethostname() if strategy == "single_node" else str(ranks.rank))
    for place in dict.fromkeys(places):
        if place == places[ranks.rank]:
            write()
        ranks.barrier()


def full_weights(
    model: PreTrainedModel,
    adapter: Adapter | None,
    ranks: Ranks,
    *,
    only_trained_names: bool = False,
    stages: Stages | None = None,
) -> dict[str, Tensor]:
    """Return the whole weights on the first rank, on the CPU.

    The other ranks gather one tensor at a time and keep none.

    Args:
        model: the model; every rank calls this.
        adapter: merged in, if there is one.
        ranks: the processes that hold the model.
        only_trained_names: list a tied output layer once, as the parameters do, and no buffers.
        stages: the stages of the model, if it has several.
    """
    if adapter is not None:
        held: Mapping[str, Tensor] = adapter.weights()
    else:
        held = dict(model.named_parameters()) if only_trained_names else model.state_dict()
    names: Iterable[str] = held
    if stages is not None:
        names = stages.parameters if only_trained_names else stages.tensors
    full: dict[str, Tensor] = {}
    for name in names:
        tensor = gathered(held, name, stages=stages)
        if ranks.is_first:
            full[name] = tensor.cpu()
    return full


def _save_huggingface(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, weights: dict[str, Tensor] | None
) -> None:
    """Write configuration, tokenizer, and weights unless `weights` is empty.

    None writes the model's own weights.
    """
    config_to_save(model).save_pretrained(folder)
    generation_config = getattr(model, "generation_config", None)  # a value model has none
    if generation_config is not None:
        generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    processor = Path(model.name_or_path or "") / PROCESSOR
    if processor.is_file():
        shutil.copyfile(processor, folder / PROCESSOR)  # of a model that reads images
    if weights is None or weights:
        model.save_pretrained(folder, state_dict=weights)


def load_trained(
    folder: Path,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    *,
    adapter: Adapter | None = None,
    ranks: Ranks = ALONE,
    contents: Sequence[str] = PARTS,
    stages: Stages | None = None,
) -> dict[str, Any]:
    """Restore weights, optimizer and random generators; return extra state.

    With an adapter, its weights are restored. Any number of ranks may have written the files. Parts that are not in
    `contents` (`checkpoint.load_contents`) start again.

    Raises:
        CheckpointError: a file cannot be read, is of another model, or holds an adapter where whole weights are
            trained, or the other way round.
    """
    left = [part for part in PARTS if part not in contents]
    if left:
        logger.warning("%s: %s not loaded, as load_contents says; this is no exact continuation", folder, left)
    if "model" in contents:
        _check_kind(folder, has_adapter=adapter is not None)
    extra: dict[str, Any] = {}
    try:
        world = saved_world(folder)
        if adapter is not None and "model" in contents:
            adapter.load(folder)
        elif "model" in contents:
            load_model_parts(read_parts(folder, "model", world), model, stages=stages)
        if "optimizer" in contents:
            numbers = None
            if stages is not None:
                numbers = [stages.parameters.index(name) for name, _ in model.named_parameters()]
            optimizer.load_state_dict(optimizer_state(read_parts(folder, "optim", world), optimizer, numbers=numbers))
        if "extra" in contents:
            extra = read_parts(folder, "extra_state", world)[ranks.rank % world]
            restore_random_state(extra.pop("rng"))
    except (OSError, RuntimeError, ValueError, KeyError, UnpicklingError) as error:
        raise CheckpointError(
            f"cannot continue from {folder}: {error}; use the model.model_path that wrote it, or set "
            "continue_from_checkpoint: false",
            code="E7008",
        ) from error
    return extra


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return a trained model's saved weights by Hugging Face name, on CPU.

    Raises:
        OSError, RuntimeError, ValueError: the file is missing or cannot be read.
    """
    parts = read_parts(folder, "model", saved_world(folder))
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def _check_kind(folder: Path, *, has_adapter: bool) -> None:
    if (folder / LORA_FOLDER).is_dir() == has_adapter:
        return
    held, wanted = ("whole weights", "an adapter") if has_adapter else ("an adapter", "whole weights")
    way = "remove model.lora_configs" if has_adapter else "write model.lora_configs as it was"
    raise CheckpointError(
        f"cannot continue from {folder}: it holds {held} and this run trains {wanted}; {way}, choose another `name`, "
        "or set continue_from_checkpoint: false",
        code="E7020",
    )
