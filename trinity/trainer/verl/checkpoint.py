"""A trained model's part of a checkpoint, in veRL's layout for one worker: `actor/`, and `critic/` where there is one.

```
actor/model_world_size_1_rank_0.pt        weights by Hugging Face name
      optim_world_size_1_rank_0.pt        optimizer state
      extra_state_world_size_1_rank_0.pt  schedule and random generators, as tensors and integers
      lora_adapter/                       with an adapter, in the place of model_...: see `lora`
      fsdp_config.json                    world size
      huggingface/                        config and tokenizer; model.safetensors on request
```
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch._weights_only_unpickler import UnpicklingError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trinity.common.errors import CheckpointError

if TYPE_CHECKING:
    from trinity.trainer.verl.lora import Adapter

SUFFIX = "world_size_1_rank_0.pt"
HUGGINGFACE = "huggingface"
LORA_FOLDER = "lora_adapter"


def save_trained(
    folder: Path,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    extra: dict[str, Any],
    *,
    tokenizer: PreTrainedTokenizerBase | None,
    hf: bool,
    adapter: Adapter | None = None,
) -> None:
    """Write the files of a trained model into the new folder `folder`.

    Args:
        folder: `global_step_N/actor` or `global_step_N/critic`.
        model: the policy, or the value model.
        optimizer: over its parameters.
        extra: schedule and other plain state; the random generators are added.
        tokenizer: saved beside the configuration.
        hf: write the weights as safetensors too, in their own number type and with the adapter merged.
        adapter: what is trained of the model, if that is an adapter.
    """
    folder.mkdir(parents=True)
    if adapter is None:
        weights = OrderedDict((name, tensor.detach().cpu()) for name, tensor in model.state_dict().items())
        torch.save(weights, folder / f"model_{SUFFIX}")
    else:
        adapter.save(folder)
    torch.save(optimizer.state_dict(), folder / f"optim_{SUFFIX}")
    torch.save(extra | {"rng": random_state()}, folder / f"extra_state_{SUFFIX}")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 1, "world_size": 1}, indent=4))
    target = folder / HUGGINGFACE
    model.config.save_pretrained(target)
    generation_config = getattr(model, "generation_config", None)  # a value model has none
    if generation_config is not None:
        generation_config.save_pretrained(target)
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    if hf:
        model.save_pretrained(target, state_dict=None if adapter is None else dict(adapter.weights()))


def load_trained(
    folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, *, adapter: Adapter | None = None
) -> dict[str, Any]:
    """Restore weights (those of `adapter`, if there is one), optimizer and random generators; return the extra state.

    Raises:
        CheckpointError: a file cannot be read, is of another model or another number of workers, or holds an adapter
            where whole weights are trained, or the other way round.
    """
    _check_kind(folder, has_adapter=adapter is not None)
    try:
        if adapter is None:
            model.load_state_dict(_load(folder / f"model_{SUFFIX}"))
        else:
            adapter.load(folder)
        optimizer.load_state_dict(_load(folder / f"optim_{SUFFIX}"))
        extra: dict[str, Any] = _load(folder / f"extra_state_{SUFFIX}")
        restore_random_state(extra.pop("rng"))
    except (OSError, RuntimeError, ValueError, KeyError, UnpicklingError) as error:
        raise CheckpointError(
            f"cannot continue from {folder}: {error}; use the model.model_path and the number of workers that wrote "
            "it, or set continue_from_checkpoint: false",
            code="E7008",
        ) from error
    return extra


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights in the folder of a trained model by Hugging Face name, on the CPU.

    Raises:
        OSError, RuntimeError, ValueError: the file is missing or cannot be read.
    """
    weights: dict[str, Tensor] = _load(folder / f"model_{SUFFIX}")
    return weights


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


def _load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def random_state() -> dict[str, Any]:
    """Return the state of every random generator of this process, as tensors, integers and lists."""
    version, numbers, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "cpu": torch.get_rng_state(),
        "random": {"version": version, "state": torch.tensor(numbers, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "name": legacy["bit_generator"],
            "key": torch.from_numpy(legacy["state"]["key"].astype(np.int64)),
            "pos": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Continue every random generator from `random_state`."""
    torch.set_rng_state(state["cpu"])
    own = state["random"]
    random.setstate((own["version"], tuple(own["state"].tolist()), own["gauss"]))
    legacy = state["numpy"]
    np.random.set_state(
        {
            "bit_generator": legacy["name"],
            "state": {"key": legacy["key"].numpy().astype(np.uint32), "pos": legacy["pos"]},
            "has_gauss": legacy["has_gauss"],
            "gauss": legacy["gauss"],
        }
    )
    cuda: Tensor | None = state.get("cuda")
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
