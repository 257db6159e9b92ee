"""Rules of training processes: number, division of work, what they save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trinity.common.config.keys import ACTOR, CRITIC, KEYS, REFERENCE, Key, last_part, part_of, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolved import critic_sharding, num_workers
from trinity.common.config.schema_index import default_at, facts_at
from trinity.common.config.verl_base import CheckpointContents
from trinity.utils.gpu import gpu_table

STRATEGY = KEYS.trainer.trainer_strategy
MEGATRON = "megatron"
SECTION = KEYS.trainer.megatron
SEQUENCE = KEYS.trainer.ulysses_sequence_parallel_size
WORKERS = KEYS.trainer.num_workers
TENSOR = SECTION.tensor_model_parallel_size
PIPELINE = SECTION.pipeline_model_parallel_size
OFFLOADS = ("param_offload", "optimizer_offload")
_GROUPS = (ACTOR.fsdp_config.fsdp_size, REFERENCE.fsdp_config.fsdp_size, CRITIC.model.fsdp_config.fsdp_size)
_RECOMPUTES = {
    ACTOR.megatron: KEYS.trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing,
    CRITIC.megatron: CRITIC.model.enable_gradient_checkpointing,
}


def is_world_known(resolution: Resolution) -> bool:
    """Return whether the process count is written or the GPUs are assigned."""
    is_open = resolution.config.cluster.gpu_per_node > 0 and resolution.config.cluster.trainer_gpu_num is None
    return bool(resolution.get(WORKERS)) or not is_open


def check_ranks(resolution: Resolution) -> None:
    """Check that training processes, if any, can be divided as configured."""
    if resolution.mode not in ("both", "train"):
        return
    if is_world_known(resolution):
        _check_world(resolution, num_workers(resolution.config))
    for key in (REFERENCE.ulysses_sequence_parallel_size, CRITIC.ulysses_sequence_parallel_size):
        value, wanted = resolution.get(key), resolution.get(SEQUENCE)
        if resolution.is_given(key) and value not in (None, wanted):
            resolution.problem(
                "E1837",
                key,
                f"`{key}` is {value}, but {SEQUENCE} is {wanted}: all models of a run share sequences alike",
                rule=f"{wanted}",
                involves=(SEQUENCE,),
                suggestion="remove it",
            )
    for section in (ACTOR.checkpoint, CRITIC.checkpoint):
        _check_contents(resolution, section)


def _check_world(resolution: Resolution, world: int) -> None:
    _check_gpus(resolution, world)
    check_model_parallel(resolution, world)
    _check_divisor(resolution, SEQUENCE, world, "E1835", "the ranks that share a sequence are part of all ranks")
    copies = max(1, world // model_parallel_size(resolution))
    for key in _GROUPS:
        if 0 < resolution.get(key) < copies:
            _check_divisor(resolution, key, copies, "E1838", "groups of equal size hold a copy of the weights each")


def _check_gpus(resolution: Resolution, world: int) -> None:
    """On GPUs, each training process has its own."""
    gpus = resolution.config.cluster.trainer_gpu_num
    if not gpus or world == gpus:
        return
    if world < gpus:
        resolution.problem(
            "W1902",
            WORKERS,
            f"`{WORKERS}` is {world} and the trainer has {gpus} GPUs: {gpus - world} of them idle",
            involves=(KEYS.cluster.gpu_per_node, KEYS.explorer.rollout_model.engine_num),
            suggestion=f"remove it, which means {gpus}, or ask for fewer GPUs",
        )
        return
    cluster = resolution.config.cluster
    engines = {"engines": cluster.rollout_gpu_num, "auxiliary": cluster.auxiliary_model_gpu_num}
    asked = {name: count for name, count in engines.items() if count} | {str(WORKERS): world}
    resolution.problem(
        "E1808",
        WORKERS,
        f"`{WORKERS}` is {world} and the trainer has {gpus} GPU{'s' * (gpus > 1)}, one for each worker:\n"
        + gpu_table(asked, resolution.filled(KEYS.cluster.total_gpu_num)),
        rule=f"at most {gpus}",
        involves=(KEYS.cluster.gpu_per_node, KEYS.cluster.node_num, KEYS.explorer.rollout_model.engine_num),
        suggestion=f"use {gpus}, fewer engines, or more GPUs",
    )


def _check_divisor(resolution: Resolution, key: Key[int], world: int, code: str, why: str) -> None:
    value = resolution.get(key) or 1
    if world % value == 0:
        return
    fine = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
    resolution.problem(
        code,
        key,
        f"`{key}` ({value}) does not divide the {world} processes that train the model: {why}",
        rule=f"a divisor of {world}",
        involves=(WORKERS,),
        suggestion=f"use one of {fine}, or change `{WORKERS}`",
    )


def _check_contents(resolution: Resolution, section: Key[CheckpointContents]) -> None:
    """Check that loaded parts are also saved; otherwise no run could resume."""
    missing = sorted({*resolution.get(section.load_contents)} - {*resolution.get(section.save_contents)} - {"hf_model"})
    if missing:
        resolution.problem(
            "E1839",
            section.save_contents,
            f"`{section.load_contents}` asks for {', '.join(missing)}, which save_contents leaves out: no checkpoint "
            "could be continued",
            rule="save_contents holds what load_contents names",
            involves=(section.load_contents,),
            suggestion=f"add {', '.join(missing)} to save_contents",
        )


def model_parallel_size(resolution: Resolution) -> int:
    """Return how many processes hold one model copy before sharding."""
    if resolution.get(STRATEGY) != MEGATRON:
        return 1
    return resolution.get(TENSOR) * resolution.get(PIPELINE)


def resolve_megatron(resolution: Resolution) -> None:
    """Reconcile the names of each Megatron size, and check combinations."""
    _check_strategies(resolution)
    if resolution.get(STRATEGY) != MEGATRON:
        _refuse_without_effect(resolution)
        return
    _join(resolution)
    for key in _written(resolution):
        if last_part(key) == "override_transformer_config":
            _check_transformer(resolution, key)
    if model_parallel_size(resolution) > 1:
        _check_company(resolution)


def resolve_megatron_offload(resolution: Resolution) -> None:
    """Set the policy's offload switches from Megatron's, before others follow."""
    if MEGATRON in (resolution.get(STRATEGY), resolution.get(ACTOR.strategy)):
        for name in OFFLOADS:
            others = (part_of(section, name) for section in (ACTOR.fsdp_config, KEYS.trainer))
            _join_offload(resolution, part_of(ACTOR.megatron, name), *others)


def _join_offload(resolution: Resolution, key: Key[object], *others: Key[object]) -> None:
    """Give `others` the value of `key`; a different written one is an error."""
    if not resolution.is_given(key):
        return
    for other in others:
        is_other = resolution.get(other) != resolution.get(key)
        # A switch that is off cannot take back what was filled in from the policy.
        if is_other and (resolution.is_given(other) or not resolution.get(key)):
            resolution.problem(
                "E1815",
                key,
                f"`{key}` is {resolution.get(key)}, but {other} is {resolution.get(other)}",
                involves=(other,),
                suggestion=f"keep `{other}`",
            )
        elif is_other:
            resolution.follow(other, key)


def _refuse_without_effect(resolution: Resolution) -> None:
    for key in _written(resolution):
        if resolution.is_own(key) and resolution.get(key) != default_at(path_of(key))[1]:
            resolution.problem(
                "E1859",
                key,
                f"`{key}` has no effect with {STRATEGY} {resolution.get(STRATEGY)}",
                involves=(STRATEGY,),
                suggestion=f"write `{STRATEGY}: megatron`, or remove it",
            )


def _written(resolution: Resolution) -> Iterator[Key[Any]]:
    """Yield Megatron's written keys; of a free mapping, the mapping itself."""
    for section in (SECTION, ACTOR.megatron, REFERENCE.megatron, CRITIC.megatron):
        if resolution.is_given(section) and isinstance(resolution.tree.get(path_of(section)), dict):
            keys = (part_of(section, name) for name, _ in resolution.get(section))
            yield from filter(resolution.is_given, keys)


def _check_strategies(resolution: Resolution) -> None:
    for key in (REFERENCE.strategy, CRITIC.strategy):
        written = resolution.get(key)
        if written is not None and (written == MEGATRON) != (resolution.get(STRATEGY) == MEGATRON):
            _differs(resolution, key, STRATEGY)


def _differs(resolution: Resolution, key: Key[object], other: Key[object]) -> None:
    resolution.problem(
        "E1858",
        key,
        f"`{key}` is {resolution.get(key)}, but {other} is {resolution.get(other)}: all models of a run are "
        "divided alike",
        rule=f"{resolution.get(other)}",
        involves=(other,),
        suggestion="remove it",
    )


def _join(resolution: Resolution) -> None:
    """Join the names of each size: the policy's wins, others may repeat it."""
    for name, _ in resolution.get(SECTION):
        plain, own = part_of(SECTION, name), part_of(ACTOR.megatron, name)
        if resolution.is_given(own):
            resolution.derive(plain, resolution.get(own), f"{own} wins")
        for key in (part_of(REFERENCE.megatron, name), part_of(CRITIC.megatron, name)):
            if resolution.is_given(key) and resolution.get(key) != resolution.get(plain):
                _differs(resolution, key, plain)
    _join_offload(resolution, REFERENCE.megatron.param_offload, REFERENCE.fsdp_config.param_offload)
    for name in OFFLOADS:
        _join_offload(resolution, part_of(CRITIC.megatron, name), part_of(critic_sharding(resolution.config), name))


def _check_transformer(resolution: Resolution, key: Key[dict[str, Any]]) -> None:
    """Accept recomputation of every layer; refuse all other entries."""
    values, served = resolution.get(key), facts_at(path_of(key))[1].entries
    for name, value in values.items():
        if value not in served.get(name, ()):
            resolution.problem(
                "E1857",
                key[name],
                f"`{key[name]}: {value}` is not done here: layers are computed by this trainer, not by Megatron's "
                "transformer",
                rule="; ".join(str(v) for v in served.get(name, ())) or "not written",
                suggestion=f"remove it; `{_RECOMPUTES[ACTOR.megatron]}` recomputes every layer",
            )
    other = next((own for section, own in _RECOMPUTES.items() if key == section.override_transformer_config), None)
    if other is None or values.get("recompute_granularity") != "full":
        return
    if resolution.is_given(other) and not resolution.get(other):
        resolution.problem(
            "E1815",
            key["recompute_granularity"],
            f"`{key['recompute_granularity']}` is full, but {other} is false",
            involves=(other,),
            suggestion=f"keep `{other}`",
        )
    else:
        resolution.derive(other, True, f"{key['recompute_granularity']} is full")


def check_model_parallel(resolution: Resolution, world: int) -> None:
    """Check that the training processes form whole copies of the model."""
    size = model_parallel_size(resolution)
    if world % size == 0:
        return
    plain = TENSOR if resolution.get(TENSOR) > 1 else PIPELINE
    own = part_of(ACTOR.megatron, last_part(plain))
    key = own if resolution.is_given(own) else plain
    resolution.problem(
        "E1848",
        key,
        f"`{key}` ({resolution.get(key)}): {last_part(TENSOR)} times {last_part(PIPELINE)} is {size}, which does not "
        f"divide the {world} processes that train the model",
        rule=f"a divisor of {world}",
        involves=(WORKERS,),
        suggestion=f"write `{WORKERS}: {size}`, or a multiple of it",
    )


def _check_company(resolution: Resolution) -> None:
    """Refuse settings that do not work with divided layers or matrices."""
    if resolution.get(SEQUENCE) > 1:
        resolution.problem(
            "E1857",
            SEQUENCE,
            f"`{SEQUENCE}` ({resolution.get(SEQUENCE)}) is not done together with {SECTION}: one of them "
            "divides the heads",
            involves=(TENSOR, PIPELINE),
            suggestion="keep one of the two",
        )
    if resolution.config.model.lora_configs:
        resolution.problem(
            "E1857",
            KEYS.model.lora_configs,
            f"`model.lora_configs` is not done together with {SECTION}: adapters of divided matrices are not trained",
            involves=(TENSOR, PIPELINE),
            suggestion="write `trainer.trainer_strategy: fsdp2`, which trains adapters on any number of workers",
        )
