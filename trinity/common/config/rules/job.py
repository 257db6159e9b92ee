"""Rules of the job: folders, resume, runtime and GPU assignment."""

from __future__ import annotations

import math
import re
from pathlib import Path, PurePath
from typing import Any

from trinity.common.config.following import fallback_of, note_idle
from trinity.common.config.keys import AUXILIARY, EXPERIENCES, KEYS, REWARD_MODEL, Key, part_of, present
from trinity.common.config.model import InferenceModelConfig
from trinity.common.config.resolution import Resolution
from trinity.common.config.rules.engines import EXTERNAL, engines
from trinity.common.config.rules.tasksets import tasksets
from trinity.utils.log import redact
from trinity.utils.remote.addresses import SCHEMES, scheme_name

DATABASES = ("sqlite", "postgresql")
CONTINUE = KEYS.continue_from_checkpoint
MODE = KEYS.trainer.trainer_config.trainer.resume_mode
PATH = KEYS.trainer.trainer_config.trainer.resume_from_path
CLUSTER = KEYS.cluster
RUNTIME = CLUSTER.runtime
ADDRESS = CLUSTER.ray_address
UPLOAD = KEYS.trainer.checkpoint_upload_dir
UNNAMED = ("auto", "")


def derive_names(resolution: Resolution) -> None:
    """Fill experiment name, job folder, namespace and the folders below."""
    if resolution.stage_name:
        name = f"{resolution.config.name}/{resolution.stage_name}"
        resolution.derive(KEYS.name, name, "the stage's name is the suffix of the experiment's name")
    root = str(resolution.config.checkpoint_root_dir or fallback_of(KEYS.checkpoint_root_dir))
    absolute = Path(root).expanduser()
    if not absolute.is_absolute():
        absolute = resolution.cwd / absolute
    resolution.derive(KEYS.checkpoint_root_dir, str(absolute), "absolute, from the working directory")
    parts = [
        resolution.config.project,
        *([resolution.config.group] if resolution.config.group else []),
        resolution.config.name,
    ]
    job = absolute.joinpath(*parts)
    resolution.derive(KEYS.checkpoint_job_dir, str(job), "<checkpoint_root_dir>/<project>[/<group>]/<name>")
    if not resolution.config.ray_namespace:
        resolution.derive(KEYS.ray_namespace, "/".join(parts), "<project>[/<group>]/<name>")
    resolution.derive(KEYS.buffer.cache_dir, str(job / "buffer"), "<job>/buffer")
    resolution.derive(KEYS.monitor.cache_dir, str(job / "monitor"), "<job>/monitor")
    resolution.derive(KEYS.buffer.tokenizer_path, resolution.config.model.model_path, KEYS.model.model_path)


def check_addresses(resolution: Resolution) -> None:
    """Refuse addresses where nothing is copied from or to them."""
    auxiliary = resolution.get(AUXILIARY).items()
    root = KEYS.checkpoint_root_dir
    models: list[Key[Any]] = [
        KEYS.model.model_path,
        KEYS.model.critic_model_path,
        *(
            KEYS.explorer.auxiliary_models[i].model_path
            for i in range(len(resolution.get(KEYS.explorer.auxiliary_models)))
        ),
        *(present(KEYS.model.lora_configs)[i].path for i in range(len(resolution.get(KEYS.model.lora_configs) or ()))),
        REWARD_MODEL.model.path,
        PATH,
    ]
    data = [
        *(place for key in tasksets(resolution) for place in _places(resolution, key.path)),
        *(_places(resolution, EXPERIENCES.path) if _reads_experiences(resolution) else ()),
        *(
            place
            for name, each in auxiliary
            if each.storage_type in (None, "file")
            for place in _places(resolution, AUXILIARY[name].path)
        ),
    ]
    for key in (root, *models, *data, UPLOAD):
        written = resolution.get(key) if resolution.is_given(key) else None
        scheme = scheme_name(written)
        known = SCHEMES.get(scheme or "")
        if key == UPLOAD:
            is_right = written is None or (known is not None and known.is_writable)
        elif scheme is None or scheme.partition("+")[0] in DATABASES:
            is_right = True
        else:
            is_right = key != root and known is not None and (key in data or known.has_folders)
        if is_right:
            continue
        rule, way_out = _refused_address(key, str(written), is_model=key in models)
        resolution.problem(
            "E1896",
            key,
            f"`{key}` is {'a path' if scheme is None else f'an address of {scheme}'}, and takes {rule}",
            value=redact(str(written)),
            rule=rule,
            suggestion=way_out,
        )


def _refused_address(key: Key[Any], written: str, *, is_model: bool) -> tuple[str, str]:
    """Return what a key takes instead of an address, and the way out."""
    rest = redact(written).partition("://")[2]
    if key == KEYS.checkpoint_root_dir:
        return (
            "a folder of this machine",
            f"keep it on a local disk, and write the address as `{UPLOAD}`: every finished checkpoint is copied there",
        )
    if key == UPLOAD:
        names = ", ".join(f"{name}://" for name, each in SCHEMES.items() if each.is_writable)
        return (
            f"an address of {names}",
            f"write such an address, or remove it: checkpoints are in `{KEYS.checkpoint_root_dir}`",
        )
    names = ", ".join(f"{name}://" for name, each in SCHEMES.items() if each.has_folders or not is_model)
    what = "a folder of this machine" if is_model else "a file or a folder of this machine"
    what += ", a hub id" * (key != PATH)
    return f"{what} or an address of {names}", f"mount or download {rest} and write the path that it has here"


def _reads_experiences(resolution: Resolution) -> bool:
    """Return whether the buffer of experiences is a dataset."""
    buffer = resolution.config.buffer.trainer_input.experience_buffer
    return buffer is not None and resolution.trains_on_dataset and buffer.storage_type in (None, "file")


def _places(resolution: Resolution, key: Key[Any]) -> list[Key[Any]]:
    """Return the keys of the places that a path names."""
    value = resolution.get(key)
    return [key] if value is None or isinstance(value, str) else [part_of(key, i) for i in range(len(value))]


def resolve_resume(resolution: Resolution) -> None:
    """Reconcile `resume_mode` and `continue_from_checkpoint`; check the path."""
    mode, path = resolution.get(MODE), resolution.get(PATH)
    continues = resolution.get(CONTINUE)
    if mode == "disable" and not resolution.is_given(CONTINUE):
        resolution.derive(CONTINUE, False, "resume_mode: disable")
    elif (mode == "disable" and continues) or (mode == "resume_path" and not continues):
        resolution.problem(
            "E1846",
            MODE,
            f"`{MODE}: {mode}` contradicts {CONTINUE}: {str(continues).lower()}",
            involves=(CONTINUE,),
            suggestion=f"remove one of them, or write `{CONTINUE}: {str(not continues).lower()}`",
        )
    if mode != "resume_path" and path:
        resolution.problem(
            "E1847",
            PATH,
            f"`{PATH}` has an effect only with resume_mode resume_path, got {mode}",
            involves=(MODE,),
            suggestion="write `resume_mode: resume_path`, or remove the path",
        )
    if mode == "resume_path" and (not path or not re.fullmatch(r"global_step_\d+", PurePath(path).name)):
        resolution.problem(
            "E1847",
            PATH,
            f"`{PATH}` must name a checkpoint, got {path or 'nothing'}",
            rule="a folder global_step_<N> of this job",
            involves=(MODE,),
            suggestion="write the path of a folder global_step_<N>",
        )


def resolve_runtime(resolution: Resolution) -> None:
    """Fill the runtime: Ray for a named cluster, or several machines or GPUs."""
    nodes, gpus = resolution.get(CLUSTER.node_num), resolution.get(CLUSTER.gpu_per_node)
    wanted = resolution.get(RUNTIME)
    if wanted == "auto":
        if resolution.get(ADDRESS) not in UNNAMED:
            resolution.derive(RUNTIME, "ray", "cluster.ray_address names a cluster")
        elif nodes > 1:
            resolution.derive(RUNTIME, "ray", "several machines need a cluster")
        elif gpus > 1:
            resolution.derive(RUNTIME, "ray", "Ray gives each component its GPUs")
        else:
            resolution.derive(RUNTIME, "local", "the processes of one machine need no cluster")
    elif wanted == "local":
        _check_local(resolution, nodes=nodes, gpus=gpus)
    note_idle(resolution, KEYS.monitor, is_written=lambda key: bool(resolution.get(key)))


def _check_local(resolution: Resolution, *, nodes: int, gpus: int) -> None:
    if nodes > 1 or gpus > 1:
        resolution.problem(
            "E3406",
            RUNTIME,
            f"`{RUNTIME}: local` has one machine and one GPU for all, asked for are {max(nodes, 1)} x {gpus}",
            involves=(CLUSTER.node_num, CLUSTER.gpu_per_node),
            suggestion="write `runtime: ray`, or `gpu_per_node: 1`",
        )
    elif resolution.get(ADDRESS) not in UNNAMED:
        resolution.problem(
            "E3406",
            ADDRESS,
            f"`{ADDRESS}` names a cluster, and `{RUNTIME}: local` uses none",
            involves=(RUNTIME,),
            suggestion="remove one of them",
        )


def resolve_cluster(resolution: Resolution) -> None:
    """Fill the GPU accounts and check that the engines fit."""
    if resolution.config.cluster.node_num == 0:
        resolution.derive(CLUSTER.node_num, 1, "one process runs on one node")
    nodes, per_node = resolution.config.cluster.node_num, resolution.config.cluster.gpu_per_node
    if per_node == 0:
        return
    total = nodes * per_node
    rollout, *others = (
        [_devices(resolution, engine) for engine in engines(resolution.config)] if resolution.explores else [0]
    )
    auxiliary, count = sum(others), len(others)
    asked = rollout + auxiliary
    has_trainer = resolution.mode in ("both", "train")
    # Engines of one device each share a single one with each other and with the trainer.
    is_shared = total == 1
    has_room = asked <= total or (is_shared and rollout <= 1 and auxiliary <= count)
    if not has_room or (has_trainer and resolution.explores and not is_shared and asked >= total):
        resolution.problem(
            "E1808",
            KEYS.explorer.rollout_model.engine_num if rollout else CLUSTER.gpu_per_node,
            f"engines ask for {asked} GPUs (rollout {rollout}, auxiliary {auxiliary}) and the cluster has {total}"
            + (", of which the trainer needs at least 1" if has_trainer and resolution.explores else ""),
            rule="rollout + auxiliary < total",
            involves=(CLUSTER.gpu_per_node, CLUSTER.node_num),
            suggestion=f"use at most {max(1, total - 1)} for the engines",
        )
        return
    resolution.derive(CLUSTER.total_gpu_num, total, "node_num x gpu_per_node")
    resolution.derive(CLUSTER.rollout_gpu_num, rollout, "engine_num x parallel sizes")
    resolution.derive(CLUSTER.auxiliary_model_gpu_num, auxiliary, "engine_num x parallel sizes")
    resolution.derive(CLUSTER.explorer_gpu_num, asked, "rollout + auxiliary")
    trainer = (1 if is_shared else total - asked) if has_trainer else 0
    resolution.derive(CLUSTER.trainer_gpu_num, trainer, "the rest, or the one GPU that explorer and trainer share")


def _devices(resolution: Resolution, engine: Key[InferenceModelConfig]) -> int:
    """Return the GPUs that the instances of an engine ask for."""
    values = resolution.get(engine)
    sizes = (values.tensor_parallel_size, values.data_parallel_size, values.pipeline_parallel_size)
    return 0 if values.engine_type == EXTERNAL else values.engine_num * math.prod(sizes)
