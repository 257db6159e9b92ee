"""Whether weights and optimizers fit into the memory of the GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.config.keys import KEYS, ROLLOUT_MODEL
from trinity.common.config.problems import Finding
from trinity.common.config.resolved import has_critic, num_workers
from trinity.preflight.devices import is_here
from trinity.preflight.doctor.gpus import listed
from trinity.preflight.model_files import read_headers
from trinity.utils.memory import memory_lines, shown_bytes

if TYPE_CHECKING:
    from trinity.common.config import Config

FLOAT32 = 4
ADAM = 2 * FLOAT32
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
WORKERS, ENGINES = str(KEYS.cluster.gpu_per_node), str(ROLLOUT_MODEL.tensor_parallel_size)


def check_gpu_memory(config: Config) -> Iterator[Finding]:
    """Yield what is larger than the GPU that is to hold it (E3701).

    Activations, caches and what libraries take are left out: what is told does not fit in any case. A device whose
    driver does not say its memory is not judged, nor is a cluster of other machines.
    """
    free = [(gpu.total_mib - gpu.used_mib) * 2**20 for gpu in listed() if gpu.total_mib]
    if not free or config.cluster.gpu_per_node < 1 or not is_here(config.cluster):
        return
    have = min(free[: config.cluster.gpu_per_node])
    trained = trainer_bytes(config) if config.mode in ("both", "train") else {}
    served = engine_bytes(config) if config.mode != "train" else {}
    is_shared = config.cluster.gpu_per_node * config.cluster.node_num == 1
    for key, table in ((WORKERS, trained | served),) if is_shared else ((WORKERS, trained), (ENGINES, served)):
        needed = sum(table.values())
        if needed > have:
            what = "the run needs" if is_shared else "the trainer needs" if table is trained else "an engine needs"
            sizes = f"{shown_bytes(needed)} of each GPU for weights and optimizer, and {shown_bytes(have)} are free"
            text = f"{what} {sizes}:\n{memory_lines(table)}"
            yield Finding("E3701", key, text, suggestion=_change(config, key, needed, have))


def trainer_bytes(config: Config) -> dict[str, int]:
    """Return the bytes of each worker by their use."""
    ranks, tree = num_workers(config), config.trainer.trainer_config
    fsdp = tree.actor_rollout_ref.actor.fsdp_config
    policy = num_parameters(config.model.model_path)
    table: dict[str, int] = {}
    if not fsdp.offload_policy:
        table["parameters"] = policy * FLOAT32 // ranks
        if not config.model.lora_configs:
            table |= {"gradients": policy * FLOAT32 // ranks, "optimizer state": policy * ADAM // ranks}
    if has_critic(config) and not tree.critic.model.fsdp_config.offload_policy:
        critic = num_parameters(config.model.critic_model_path or config.model.model_path)
        table["critic"] = critic * (2 * FLOAT32 + ADAM) // ranks
    return {name: size for name, size in table.items() if size}


def engine_bytes(config: Config) -> dict[str, int]:
    """Return the bytes of an engine's weights on each of its devices."""
    model = config.explorer.rollout_model
    devices = max(1, model.tensor_parallel_size * model.pipeline_parallel_size)
    size = num_parameters(config.model.model_path) * _BYTES.get(model.dtype, 2) // devices
    return {"weights of an engine": size} if size else {}


def num_parameters(folder: str) -> int:
    """Return how many numbers the weight files of a folder hold."""
    path = Path(folder)
    return sum(math.prod(shape) for shape in read_headers(path).values()) if path.is_dir() else 0


def _change(config: Config, key: str, needed: float, have: float) -> str:
    """Return the smallest change after which it fits."""
    times = math.ceil(needed / have)
    if key == ENGINES:
        sizes = config.explorer.rollout_model
        return f"use --set {ENGINES}={max(1, sizes.tensor_parallel_size) * times}, or a smaller model"
    workers = num_workers(config) * times
    offload = f"{KEYS.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.offload_policy}=true"
    return f"give the trainer {workers} GPUs, use --set {offload}, or train an adapter (`{KEYS.model.lora_configs}`)"
