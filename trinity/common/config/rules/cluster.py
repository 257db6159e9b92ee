"""Engine, runtime, devices and the transport of weights."""

from __future__ import annotations

from trinity.common.config.draft import Draft, path_of
from trinity.common.config.rules.engines import resolve_engine_types
from trinity.common.config.rules.runtime import resolve_runtime

ISOLATION = "explorer.runner_isolation"
DYNAMIC = "explorer.dynamic_timeout.enable"
METHOD = "synchronizer.sync_method"
DELTA = "synchronizer.checkpoint_delta"


def resolve_engine(draft: Draft) -> None:
    """Fill the engine type and the runtime, on which it depends."""
    resolve_runtime(draft)
    resolve_engine_types(draft)
    if draft.get(ISOLATION) == "auto":
        is_ray = draft.get("cluster.runtime") == "ray"
        reason = "a cluster places runners anywhere" if is_ray else "the least memory, and started at once"
        draft.derive(ISOLATION, "process" if is_ray else "thread", reason)
    runners = draft.get("explorer.runner_num")
    if runners is not None and not draft.is_given("explorer.runner_per_model"):
        per_model = max(1, runners // draft.get("explorer.rollout_model.engine_num"))
        draft.derive("explorer.runner_per_model", per_model, "runner_num over engine_num")


def resolve_cluster(draft: Draft) -> None:
    """Fill the GPU accounts and check that the engines fit."""
    if draft.get("cluster.node_num") == 0:
        draft.derive("cluster.node_num", 1, "one process runs on one node")
    nodes, per_node = draft.get("cluster.node_num"), draft.get("cluster.gpu_per_node")
    if per_node == 0:
        return
    total = nodes * per_node
    rollout = _devices(draft, "explorer.rollout_model") if draft.explores else 0
    count = len(draft.get("explorer.auxiliary_models")) if draft.explores else 0
    auxiliary = sum(_devices(draft, f"explorer.auxiliary_models[{i}]") for i in range(count))
    asked = rollout + auxiliary
    has_trainer = draft.mode in ("both", "train")
    # Engines of one device each share a single one with each other and with the trainer.
    is_shared = total == 1
    has_room = asked <= total or (is_shared and rollout <= 1 and auxiliary <= count)
    if not has_room or (has_trainer and draft.explores and not is_shared and asked >= total):
        draft.problem(
            "E1808",
            "explorer.rollout_model.engine_num" if rollout else "cluster.gpu_per_node",
            f"engines ask for {asked} GPUs (rollout {rollout}, auxiliary {auxiliary}) and the cluster has {total}"
            + (", of which the trainer needs at least 1" if has_trainer and draft.explores else ""),
            rule="rollout + auxiliary < total",
            involves=("cluster.gpu_per_node", "cluster.node_num"),
            suggestion=f"use at most {max(1, total - 1)} for the engines",
        )
        return
    draft.derive("cluster.total_gpu_num", total, "node_num x gpu_per_node")
    draft.derive("cluster.rollout_gpu_num", rollout, "engine_num x parallel sizes")
    draft.derive("cluster.auxiliary_model_gpu_num", auxiliary, "engine_num x parallel sizes")
    draft.derive("cluster.explorer_gpu_num", asked, "rollout + auxiliary")
    trainer = (1 if is_shared else total - asked) if has_trainer else 0
    draft.derive("cluster.trainer_gpu_num", trainer, "the rest, or the one GPU that explorer and trainer share")


def _devices(draft: Draft, engine: str) -> int:
    if draft.get(f"{engine}.engine_type") == "external":
        return 0
    sizes = ("engine_num", "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
    product = 1
    for name in sizes:
        product *= draft.get(f"{engine}.{name}")
    return product


def resolve_synchronizer(draft: Draft) -> None:
    """Fill the transport and the intervals."""
    for side in ("explorer", "trainer"):
        key = f"synchronizer.{side}_sync_interval"
        if draft.get(key) is None:
            draft.derive(key, draft.get("synchronizer.sync_interval"), "sync_interval")
    _resolve_method(draft)
    if draft.get(DELTA) and draft.get(METHOD) != "checkpoint":
        method = draft.get(METHOD)
        draft.problem("W1902", DELTA, f"`{DELTA}` has no effect with sync_method {method}", suggestion="remove it")
    written = draft.tree.get(path_of(METHOD)) if draft.is_given(METHOD) else None
    if draft.get("model.lora_configs") and written in ("nccl", "online"):
        draft.problem(
            "E1812",
            METHOD,
            f"`{METHOD}: nccl` sends the trained tensors to engines on other devices, and with model.lora_configs "
            "these are an adapter's; the engine takes merged weights from memory or from files",
            involves=("model.lora_configs",),
            suggestion="write `sync_method: auto` or `sync_method: checkpoint`",
        )
    _check_pacing(draft)


def _check_pacing(draft: Draft) -> None:
    """Check that nobody goes on without tasks that somebody waits for, and that timing decides nothing it may not."""
    leaves_tasks = draft.get("explorer.over_rollout.ratio") > 0
    if leaves_tasks and draft.get("synchronizer.sync_style") == "fixed":
        draft.problem(
            "E1805",
            "explorer.over_rollout.ratio",
            "`explorer.over_rollout.ratio` > 0 does not fit sync_style fixed, which waits for every task",
            involves=("synchronizer.sync_style",),
            suggestion="write `ratio: 0` or another sync_style",
        )
    timed = {"explorer.over_rollout.ratio": leaves_tasks, DYNAMIC: draft.get(DYNAMIC)}
    for key, is_used in timed.items():
        if is_used and draft.get("deterministic") and draft.explores:
            draft.problem(
                "E1805",
                key,
                f"with `deterministic: true` no rollout may depend on how long others took, as it does with {key}",
                involves=("deterministic",),
                suggestion=f"remove `{key.removeprefix('explorer.')}`, or write `deterministic: false`",
            )


def _resolve_method(draft: Draft) -> None:
    method = draft.get(METHOD)
    if draft.mode == "both":
        if method == "auto" or (method == "nccl" and not _has_engines_apart(draft)):
            draft.derive(
                METHOD,
                "memory",
                "the memory of the run's processes"
                if method == "auto"
                else "nccl between parts of one process is a copy in memory",
            )
        return
    if method in ("nccl", "memory") and draft.is_own(METHOD) and _mode_is_written_with(draft):
        draft.problem(
            "E1804",
            METHOD,
            f"`{METHOD}: {method}` needs explorer and trainer in one run, but mode is {draft.mode}",
            rule="checkpoint",
            suggestion="write `sync_method: checkpoint`",
        )
    elif method != "checkpoint":
        draft.derive(METHOD, "checkpoint", f"mode {draft.mode} meets the other side in checkpoints")


def _has_engines_apart(draft: Draft) -> bool:
    """Return whether engines have processes of their own."""
    engine = "explorer.rollout_model"
    is_here = draft.get(f"{engine}.engine_type") == "torch" and draft.get(f"{engine}.engine_num") == 1
    return not is_here or draft.get("cluster.runtime") != "local"


def _mode_is_written_with(draft: Draft) -> bool:
    """Return whether the transport was written for this mode: in the same file, or in this very stage."""
    return draft.stage_name is None or draft.is_own(METHOD)


def resolve_evaluation(draft: Draft) -> None:
    """Round eval_interval to the synchronisation rhythm, at which the weights change."""
    interval = draft.get("explorer.eval_interval")
    rhythm = draft.get("synchronizer.explorer_sync_interval")
    if interval is None or not draft.explores or interval % rhythm == 0:
        return
    rounded = max(rhythm, interval // rhythm * rhythm)
    draft.derive("explorer.eval_interval", rounded, f"a multiple of explorer_sync_interval ({rhythm})")
