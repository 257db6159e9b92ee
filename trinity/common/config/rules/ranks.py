"""The processes that train the model: how many there are, how they divide model and sequences, what they save."""

from __future__ import annotations

from trinity.common.config.draft import Draft
from trinity.common.config.rules.megatron import check_model_parallel, model_parallel_size
from trinity.utils.gpu import gpu_table

WORKERS = "trainer.num_workers"
SEQUENCE = "trainer.ulysses_sequence_parallel_size"
TREE = "trainer.trainer_config"
_ACTOR = f"{TREE}.actor_rollout_ref.actor"
_REF = f"{TREE}.actor_rollout_ref.ref"
_CRITIC = f"{TREE}.critic"
_SIZES = (
    f"{_ACTOR}.fsdp_config.fsdp_size",
    f"{_REF}.fsdp_config.fsdp_size",
    f"{_CRITIC}.model.fsdp_config.fsdp_size",
)


def num_workers(draft: Draft) -> int:
    """Return the processes that train the model: as written, else one a GPU of the trainer."""
    return int(draft.get(WORKERS) or draft.get("cluster.trainer_gpu_num") or 1)


def is_world_known(draft: Draft) -> bool:
    """Return whether it is known how many processes train: written, or the GPUs of the cluster are shared out."""
    is_open = draft.get("cluster.gpu_per_node") > 0 and draft.get("cluster.trainer_gpu_num") is None
    return bool(draft.get(WORKERS)) or not is_open


def check_ranks(draft: Draft) -> None:
    """Check that the training processes can be divided as the configuration says, where there are any."""
    if draft.mode not in ("both", "train"):
        return
    if is_world_known(draft):
        _check_world(draft, num_workers(draft))
    for key in (f"{_REF}.ulysses_sequence_parallel_size", f"{_CRITIC}.ulysses_sequence_parallel_size"):
        value, wanted = draft.get(key), draft.get(SEQUENCE)
        if draft.is_given(key) and value not in (None, wanted):
            draft.problem(
                "E1837",
                key,
                f"`{key}` is {value}, but {SEQUENCE} is {wanted}: all models of a run share sequences alike",
                rule=f"{wanted}",
                involves=(SEQUENCE,),
                suggestion="remove it",
            )
    for section in (f"{_ACTOR}.checkpoint", f"{_CRITIC}.checkpoint"):
        _check_contents(draft, section)


def _check_world(draft: Draft, world: int) -> None:
    _check_gpus(draft, world)
    check_model_parallel(draft, world)
    _check_divisor(draft, SEQUENCE, world, "E1835", "the ranks that share a sequence are part of all ranks")
    copies = max(1, world // model_parallel_size(draft))
    for key in _SIZES:
        if (draft.get(key) or -1) > 0 and draft.get(key) < copies:
            _check_divisor(draft, key, copies, "E1838", "groups of equal size hold a copy of the weights each")


def _check_gpus(draft: Draft, world: int) -> None:
    """Where there are GPUs each process that trains has one of its own."""
    gpus = draft.get("cluster.trainer_gpu_num")
    if not gpus or world == gpus:
        return
    if world < gpus:
        draft.problem(
            "W1902",
            WORKERS,
            f"`{WORKERS}` is {world} and the trainer has {gpus} GPUs: {gpus - world} of them idle",
            involves=("cluster.gpu_per_node", "explorer.rollout_model.engine_num"),
            suggestion=f"remove it, which means {gpus}, or ask for fewer GPUs",
        )
        return
    engines = {
        "engines": draft.get("cluster.rollout_gpu_num"),
        "auxiliary": draft.get("cluster.auxiliary_model_gpu_num"),
    }
    asked = {name: count for name, count in engines.items() if count} | {WORKERS: world}
    draft.problem(
        "E1808",
        WORKERS,
        f"`{WORKERS}` is {world} and the trainer has {gpus} GPU{'s' * (gpus > 1)}, one for each worker:\n"
        + gpu_table(asked, draft.get("cluster.total_gpu_num")),
        rule=f"at most {gpus}",
        involves=("cluster.gpu_per_node", "cluster.node_num", "explorer.rollout_model.engine_num"),
        suggestion=f"use {gpus}, fewer engines, or more GPUs",
    )


def _check_divisor(draft: Draft, key: str, world: int, code: str, why: str) -> None:
    value = draft.get(key) or 1
    if world % value == 0:
        return
    fine = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
    draft.problem(
        code,
        key,
        f"`{key}` ({value}) does not divide the {world} processes that train the model: {why}",
        rule=f"a divisor of {world}",
        involves=(WORKERS,),
        suggestion=f"use one of {fine}, or change `{WORKERS}`",
    )


def _check_contents(draft: Draft, section: str) -> None:
    """What is loaded must have been saved, or no run could be continued."""
    saved, loaded = (set(draft.get(f"{section}.{name}_contents") or ()) for name in ("save", "load"))
    missing = sorted(loaded - saved - {"hf_model"})
    if missing:
        draft.problem(
            "E1839",
            f"{section}.save_contents",
            f"`{section}.load_contents` asks for {', '.join(missing)}, which save_contents leaves out: no checkpoint "
            "could be continued",
            rule="save_contents holds what load_contents names",
            involves=(f"{section}.load_contents",),
            suggestion=f"add {', '.join(missing)} to save_contents",
        )
