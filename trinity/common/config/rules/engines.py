"""Which engine answers, and keys that only one kind of engine has."""

from __future__ import annotations

import importlib.util

from trinity.common.config.draft import Draft
from trinity.common.config.engine_args import FIXED_ARGS, KEY_ARGS, TORCH_ENGINE_ARGS
from trinity.utils.gpu import has_gpu

MODELS = "explorer.auxiliary_models"
ROLLOUT = "explorer.rollout_model"
REPLICAS = "replicas are engines here, each watched and started again on its own"
SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
TUNING = ("enforce_eager", "enable_prefix_caching", "enable_chunked_prefill", "enable_expert_parallel",
          "enable_log_requests")  # fmt: skip


def resolve_engine_types(draft: Draft) -> None:
    """Choose the engine where `engine_type` is auto, and check each model's keys against its engine."""
    if not draft.explores:
        return
    models = [ROLLOUT, *(f"{MODELS}[{index}]" for index in range(len(draft.get(MODELS))))]
    for model in models:
        key = f"{model}.engine_type"
        if draft.get(key) == "auto":
            draft.derive(key, *_chosen_engine(draft, model))
        elif draft.get(key) == "vllm_async":
            draft.derive(key, "vllm", "vllm_async means vllm")
        _spread_replicas(draft, model)
        if draft.get(key) == "vllm":
            _check_vllm(draft, model)
            _check_arguments(draft, model)
        elif draft.get(key) == "torch":
            _check_torch(draft, model)


def _chosen_engine(draft: Draft, model: str) -> tuple[str, str]:
    """Return the engine that `auto` means, and why: what the file says decides, then the machine, if it may."""
    for name in SIZES:
        if draft.get(f"{model}.{name}") > 1:
            return "vllm", f"{name} above 1 needs it"
    foreign = _foreign_arguments(draft, model)
    if foreign:
        return "vllm", f"extra_engine_args.{foreign[0]} is an argument of vLLM"
    if not draft.looks_at_machine and not draft.get("deterministic"):
        return "auto", "the machine that runs it decides"
    return best_engine(is_deterministic=bool(draft.get("deterministic")), sees_gpus=_sees_gpus(draft))


def _foreign_arguments(draft: Draft, model: str) -> list[str]:
    """Return the names in `extra_engine_args` that the torch engine does not have."""
    return sorted(set(draft.get(f"{model}.extra_engine_args")) - set(TORCH_ENGINE_ARGS))


def _spread_replicas(draft: Draft, model: str) -> None:
    """Make an engine of each replica: `engine_num` becomes their number, and what an engine asks for is one replica."""
    key, engines = f"{model}.data_parallel_size", f"{model}.engine_num"
    size = draft.get(key)
    if size == 1:
        return
    if draft.get(f"{model}.enable_expert_parallel"):
        why = f" with enable_expert_parallel: {REPLICAS}, and share no experts"
        _refuse_size(draft, model, "data_parallel_size", why=why, suggestion=f"write `{model}.tensor_parallel_size`")
        return
    draft.derive(engines, draft.get(engines) * size, f"{key} {size}: {REPLICAS}")
    draft.derive(key, 1, f"each replica is one of {engines}")


def _sees_gpus(draft: Draft) -> bool:
    """Return whether engines see GPUs that are there: on Ray only those that the run asks for."""
    return draft.get("cluster.runtime") != "ray" or draft.get("cluster.gpu_per_node") > 0


def best_engine(*, is_deterministic: bool, sees_gpus: bool = True) -> tuple[str, str]:
    """Return the engine that `auto` means on this machine, and why.

    Args:
        is_deterministic: the run has to be repeatable.
        sees_gpus: engines may use the GPUs that are there.
    """
    if is_deterministic:
        return "torch", "deterministic: true needs it"
    if importlib.util.find_spec("vllm") is None:
        return "torch", "vLLM is not installed"
    if not sees_gpus:
        return "torch", "the run asks for no GPU of the cluster"
    return ("vllm", "vLLM and a GPU are there") if has_gpu() else ("torch", "this machine has no GPU")


def _refuse_size(draft: Draft, model: str, name: str, *, why: str, suggestion: str) -> None:
    key = f"{model}.{name}"
    if draft.get(key) != 1:
        message = f"`{key}: {draft.get(key)}` is not served{why}"
        draft.problem("E3223", key, message, rule="1", involves=(f"{model}.engine_type",), suggestion=suggestion)


def _check_vllm(draft: Draft, model: str) -> None:
    if draft.get("deterministic"):
        draft.problem(
            "E3220",
            f"{model}.engine_type",
            "`deterministic: true` does not fit engine_type vllm: the bits of its sums depend on which requests share "
            "a batch",
            rule="torch",
            involves=("deterministic", *(f"{model}.{name}" for name in SIZES)),
            suggestion=f"use --set {model}.engine_type=torch, or write `deterministic: false`",
        )


def _check_arguments(draft: Draft, model: str) -> None:
    """Refuse arguments of vLLM that have a key of their own, or that the engine sets itself."""
    for name in draft.get(f"{model}.extra_engine_args"):
        key, why = f"{model}.extra_engine_args.{name}", None
        if name in KEY_ARGS:
            why, way_out = "has a key of its own", f"write `{model}.{name}`"
        elif name in FIXED_ARGS:
            why, way_out = "is set by the engine, whose samples and weight updates depend on it", "remove it"
        if why is not None:
            draft.problem("E3224", key, f"`{key}` {why}", involves=(f"{model}.engine_type",), suggestion=way_out)


def _check_torch(draft: Draft, model: str) -> None:
    for name in SIZES:
        why = " by the torch engine, which is on one device"
        _refuse_size(
            draft, model, name, why=why, suggestion=f"use --set {model}.{name}=1 or --set {model}.engine_type=vllm"
        )
    for name in _foreign_arguments(draft, model):
        draft.problem(
            "E1612",
            f"{model}.extra_engine_args.{name}",
            f"`{model}.extra_engine_args.{name}` is no argument of the torch engine",
            rule=f"one of {', '.join(TORCH_ENGINE_ARGS)}",
            involves=(f"{model}.engine_type",),
            suggestion=f"remove it, or use --set {model}.engine_type=vllm",
        )
    for name in TUNING:
        if draft.is_given(f"{model}.{name}"):
            draft.problem(
                "W1902",
                f"{model}.{name}",
                f"`{model}.{name}` has no effect: it is of the vLLM engine, and the engine is torch",
                suggestion="remove it",
            )
