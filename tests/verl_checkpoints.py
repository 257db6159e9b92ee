"""Checkpoints as veRL writes them, by real processes with PyTorch's own FSDP2: what each file holds, and its name."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from tests.tiny import tiny_model
from tests.trainer.rank_pool import RankPool
from trinity.trainer.verl.parallel.ranks import Ranks

LR = 1e-3


@dataclass(frozen=True)
class Written:
    """What four processes wrote.

    Attributes:
        folder: `global_step_20`: a policy of two replicas of two parts in bfloat16 with a tied output layer, and a
            critic of two parts in float32.
        model: the model that both began from.
        actor: weights of the policy, whole.
        critic: weights of the critic.
        moments: of the policy's optimizer, by number of the parameter and name.
        plain: folders with a few tensors of odd sizes, by the number of ranks.
    """

    folder: Path
    model: Path
    actor: dict[str, Tensor]
    critic: dict[str, Tensor]
    moments: dict[str, Tensor]
    plain: dict[int, Path]


def written(root: Path) -> Written:
    """Write the checkpoints that tests read, below `root`."""
    tiny_model(root / "model", "qwen2", seed=5, tie_word_embeddings=True)
    folder, plain = root / "run" / "global_step_20", {2: root / "plain_2", 4: root / "plain_4"}
    with RankPool(4) as pool:
        actor = pool.run(4, write, folder / "actor", root / "model", 2, torch.bfloat16)[0]
        critic = pool.run(2, write, folder / "critic", root / "model", 1, torch.float32, True)[0]
        pool.run(2, write_tensors, plain[2] / "global_step_3" / "actor", 1)
        pool.run(4, write_tensors, plain[4] / "global_step_3" / "actor", 2)
    return Written(folder, root / "model", actor["weights"], critic["weights"], actor["moments"], plain)


def tensors() -> dict[str, Tensor]:
    """Return tensors whose rows no number of ranks divides."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"embed": (37, 8), "norm": (5,), "short": (1, 3), "columns": (3, 10), "whole": (4,)}
    made = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    return made | {"buffer": torch.arange(3)}


def write_tensors(ranks: Ranks, folder: Path, replicas: int) -> None:
    """Write `tensors()` as FSDP2 lays them out, or HSDP; one along its columns, one on every rank, one plain."""
    if ranks.rank == 0:
        folder.mkdir(parents=True)
    torch.distributed.barrier()
    mesh = _mesh(ranks, replicas)
    state: OrderedDict[str, Tensor] = OrderedDict()
    for name, tensor in tensors().items():
        place = Replicate() if name == "whole" else Shard(1 if name == "columns" else 0)
        places = [Replicate(), place] if replicas > 1 else [place]
        state[name] = tensor if name == "buffer" else distribute_tensor(tensor, mesh, places)
    torch.save(state, folder / f"model_world_size_{ranks.world}_rank_{ranks.rank}.pt")
    torch.distributed.barrier()


def _mesh(ranks: Ranks, replicas: int) -> Any:
    if replicas == 1:
        return init_device_mesh("cpu", (ranks.world,), mesh_dim_names=("fsdp",))
    return init_device_mesh("cpu", (replicas, ranks.world // replicas), mesh_dim_names=("ddp", "fsdp"))


def write(
    ranks: Ranks,
    folder: Path,
    model_path: Path,
    replicas: int = 1,
    dtype: torch.dtype = torch.float32,
    is_critic: bool = False,
) -> dict[str, Any]:
    """Train a model for a step and write `folder` on every rank; return what it holds, whole.

    Args:
        ranks: the processes of the group.
        folder: `global_step_N/actor`, made by the first rank.
        model_path: the model at the start.
        replicas: 1: FSDP; more: HSDP, with as many copies of each part.
        dtype: of the weights.
        is_critic: a token classifier with one label.
    """
    kind = AutoModelForTokenClassification if is_critic else AutoModelForCausalLM
    torch.manual_seed(3)
    model = kind.from_pretrained(model_path, dtype=dtype, **({"num_labels": 1} if is_critic else {}))
    model.config.architectures = [type(model).__name__]
    mesh = _mesh(ranks, replicas)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    schedule = LambdaLR(optimizer, lambda _: 1.0)
    tokens = torch.arange(3, 19).view(2, 8)
    model(input_ids=tokens).logits.float().logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    _save(ranks, folder, model, optimizer, schedule, model_path)
    torch.distributed.barrier()
    state: dict[str, Any] = optimizer.state_dict()["state"]
    moments = {f"{n}.{key}": _whole(tensor) for n, each in state.items() for key, tensor in each.items()}
    return {"weights": {n: _whole(t) for n, t in model.state_dict().items()}, "moments": moments}


def _save(
    ranks: Ranks,
    folder: Path,
    model: Any,
    optimizer: torch.optim.Optimizer,
    schedule: LambdaLR,
    model_path: Path,
) -> None:
    if ranks.rank == 0:
        folder.mkdir(parents=True)
    torch.distributed.barrier()
    end = f"world_size_{ranks.world}_rank_{ranks.rank}.pt"
    torch.save(model.state_dict(), folder / f"model_{end}")
    torch.save(optimizer.state_dict(), folder / f"optim_{end}")
    rng = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
    torch.save({"lr_scheduler": schedule.state_dict(), "rng": rng}, folder / f"extra_state_{end}")
    if ranks.rank == 0:
        model.config.save_pretrained(folder / "huggingface")
        AutoTokenizer.from_pretrained(model_path).save_pretrained(folder / "huggingface")
        text = json.dumps({"FSDP_version": 2, "world_size": ranks.world}, indent=4)
        (folder / "fsdp_config.json").write_text(text)
        torch.save({"_snapshot": {"_sampler_iter_yielded": 1}}, folder.parent / "data.pt")
        (folder.parents[1] / "latest_checkpointed_iteration.txt").write_text(folder.parent.name.rpartition("_")[2])


def _whole(tensor: Any) -> Tensor:
    full: Tensor = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
    return full
