"""Engines: which one answers, keys that only one kind has, models behind a server, and a teacher among them."""

from __future__ import annotations

import importlib.util

from trinity.common.config.config import Config
from trinity.common.config.draft import Draft
from trinity.common.config.engine_args import FIXED_ARGS, KEY_ARGS, TORCH_ENGINE_ARGS
from trinity.common.config.keys import KEYS, ROLLOUT_MODEL, Key, last_part
from trinity.common.config.model import InferenceModelConfig
from trinity.common.config.rules.tasksets import tasksets
from trinity.utils.gpu import has_gpu

MODELS = KEYS.explorer.auxiliary_models
SHARED = KEYS.model.external_model
EXTERNAL = "external"
ISOLATION = KEYS.explorer.runner_isolation
REPLICAS = "replicas are engines here, each watched and started again on its own"


def engines(config: Config) -> list[Key[InferenceModelConfig]]:
    """Return the keys of all engines' sections, the trained model's first."""
    return [ROLLOUT_MODEL, *(MODELS[index] for index in range(len(config.explorer.auxiliary_models)))]


def divisions(model: Key[InferenceModelConfig]) -> tuple[Key[int], ...]:
    """Return the keys that say over how many devices one engine is divided."""
    return model.tensor_parallel_size, model.pipeline_parallel_size


def resolve_engine(draft: Draft) -> None:
    """Fill the engine types, how runners are kept apart, and their number."""
    _resolve_types(draft)
    if draft.get(ISOLATION) == "auto":
        is_ray = draft.config.cluster.runtime == "ray"
        reason = "a cluster places runners anywhere" if is_ray else "the least memory, and started at once"
        draft.derive(ISOLATION, "process" if is_ray else "thread", reason)
    runners = draft.config.explorer.runner_num
    if runners is not None and not draft.is_given(KEYS.explorer.runner_per_model):
        per_model = max(1, runners // draft.config.explorer.rollout_model.engine_num)
        draft.derive(KEYS.explorer.runner_per_model, per_model, "runner_num over engine_num")


def _resolve_types(draft: Draft) -> None:
    """Choose the engine where `engine_type` is auto, and check each model's keys against its engine."""
    if not draft.explores:
        return
    for model in engines(draft.config):
        key = model.engine_type
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


def _chosen_engine(draft: Draft, model: Key[InferenceModelConfig]) -> tuple[str, str]:
    """Return the engine that `auto` means, and why: what the file says decides, then the machine, if it may."""
    for key in divisions(model):
        if draft.get(key) > 1:
            return "vllm", f"{last_part(key)} above 1 needs it"
    foreign = _foreign_arguments(draft, model)
    if foreign:
        return "vllm", f"extra_engine_args.{foreign[0]} is an argument of vLLM"
    if not draft.looks_at_machine and not draft.config.deterministic:
        return "auto", "the machine that runs it decides"
    return best_engine(is_deterministic=draft.config.deterministic, sees_gpus=_sees_gpus(draft))


def _foreign_arguments(draft: Draft, model: Key[InferenceModelConfig]) -> list[str]:
    """Return the names in `extra_engine_args` that the torch engine does not have."""
    return sorted(set(draft.get(model.extra_engine_args)) - set(TORCH_ENGINE_ARGS))


def _spread_replicas(draft: Draft, model: Key[InferenceModelConfig]) -> None:
    """Make an engine of each replica: `engine_num` becomes their number, and what an engine asks for is one replica."""
    key, number = model.data_parallel_size, model.engine_num
    size = draft.get(key)
    if size == 1:
        return
    if draft.get(model.enable_expert_parallel):
        why = f" with enable_expert_parallel: {REPLICAS}, and share no experts"
        _refuse_size(draft, model, key, why=why, suggestion=f"write `{model.tensor_parallel_size}`")
        return
    draft.derive(number, draft.get(number) * size, f"{key} {size}: {REPLICAS}")
    draft.derive(key, 1, f"each replica is one of {number}")


def _sees_gpus(draft: Draft) -> bool:
    """Return whether engines see GPUs that are there: on Ray only those that the run asks for."""
    return draft.config.cluster.runtime != "ray" or draft.config.cluster.gpu_per_node > 0


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


def _refuse_size(draft: Draft, model: Key[InferenceModelConfig], key: Key[int], *, why: str, suggestion: str) -> None:
    if draft.get(key) != 1:
        message = f"`{key}: {draft.get(key)}` is not served{why}"
        draft.problem("E3223", key, message, rule="1", involves=(model.engine_type,), suggestion=suggestion)


def _check_vllm(draft: Draft, model: Key[InferenceModelConfig]) -> None:
    if draft.config.deterministic:
        draft.problem(
            "E3220",
            model.engine_type,
            "`deterministic: true` does not fit engine_type vllm: the bits of its sums depend on which requests share "
            "a batch",
            rule="torch",
            involves=(KEYS.deterministic, *divisions(model)),
            suggestion=f"use --set {model.engine_type}=torch, or write `deterministic: false`",
        )


def _check_arguments(draft: Draft, model: Key[InferenceModelConfig]) -> None:
    """Refuse arguments of vLLM that have a key of their own, or that the engine sets itself."""
    for name in draft.get(model.extra_engine_args):
        key = model.extra_engine_args[name]
        if name in KEY_ARGS:
            why, way_out = "has a key of its own", f"write `{model}.{name}`"
        elif name in FIXED_ARGS:
            why, way_out = "is set by the engine, whose samples and weight updates depend on it", "remove it"
        else:
            continue
        draft.problem("E3224", key, f"`{key}` {why}", involves=(model.engine_type,), suggestion=way_out)


def _check_torch(draft: Draft, model: Key[InferenceModelConfig]) -> None:
    for size in divisions(model):
        way_out = f"use --set {size}=1 or --set {model.engine_type}=vllm"
        _refuse_size(draft, model, size, why=" by the torch engine, which is on one device", suggestion=way_out)
    for name in _foreign_arguments(draft, model):
        draft.problem(
            "E1612",
            model.extra_engine_args[name],
            f"`{model.extra_engine_args[name]}` is no argument of the torch engine",
            rule=f"one of {', '.join(TORCH_ENGINE_ARGS)}",
            involves=(model.engine_type,),
            suggestion=f"remove it, or use --set {model.engine_type}=vllm",
        )
    tuning = (model.enforce_eager, model.enable_prefix_caching, model.enable_chunked_prefill)
    for key in (*tuning, model.enable_expert_parallel, model.enable_log_requests):
        if draft.is_given(key):
            draft.problem(
                "W1902",
                key,
                f"`{key}` has no effect: it is of the vLLM engine, and the engine is torch",
                suggestion="remove it",
            )


def resolve_external(draft: Draft) -> None:
    """Let the server of section `model` be the model of a benchmark, and check what is asked of external models."""
    if not draft.explores:
        return
    if draft.get(SHARED.enable):
        _resolve_shared(draft)
    external = [model for model in engines(draft.config) if draft.get(model.engine_type) == EXTERNAL]
    for key in external:
        _check_external(draft, key)
    if ROLLOUT_MODEL in external and draft.mode != "bench":
        draft.problem(
            "E1869",
            ROLLOUT_MODEL.engine_type,
            f"`{ROLLOUT_MODEL.engine_type}: external` cannot be trained: the server takes no new weights",
            rule="an engine of the run, but in mode bench",
            involves=(KEYS.mode, SHARED.enable),
            suggestion="write `engine_type: torch`, or make the server an auxiliary model",
        )
    if external and draft.config.deterministic:
        draft.problem(
            "E1869",
            external[0].engine_type,
            f"`{external[0].engine_type}: external` cannot be repeated: `deterministic: true` needs engines of the run",
            rule="no external model with deterministic: true",
            involves=(KEYS.deterministic,),
            suggestion="write `deterministic: false`, or `engine_type: torch`",
        )


def _resolve_shared(draft: Draft) -> None:
    engine = ROLLOUT_MODEL.engine_type
    if draft.mode != "bench":
        draft.problem(
            "E1869",
            SHARED.enable,
            f"`{SHARED}` is for mode bench: a server takes no new weights, and mode is {draft.mode}",
            rule="mode bench",
            involves=(KEYS.mode,),
            suggestion=f"remove it, or write `{MODELS}: [{{engine_type: external, external_model_config: {{...}}}}]`",
        )
    elif not draft.is_given(engine) or draft.get(engine) == "auto":
        draft.derive(engine, EXTERNAL, SHARED.enable)


def _check_external(draft: Draft, model: Key[InferenceModelConfig]) -> None:
    own = draft.get(model.external_model_config) or draft.get(SHARED)
    if not own.model_name and not draft.get(model.name):
        draft.problem(
            "E1821",
            model.external_model_config,
            f"`{model}` is external and names no model",
            involves=(SHARED, model),
            suggestion="write `external_model_config: {model_name: <name at the server>}`",
        )
    of_an_engine: tuple[Key[object], ...] = (
        model.engine_num, model.dtype, model.extra_engine_args, model.gpu_memory_utilization, model.chat_template,
        model.trust_remote_code, model.seed,
    )  # fmt: skip
    for key in of_an_engine:
        if draft.is_own(key):
            draft.problem("W1902", key, f"`{key}` has no effect on an external model")


def check_auxiliary_models(draft: Draft) -> None:
    """Check that every auxiliary model names its folder, and that a teacher is there and long enough."""
    if not draft.explores:
        return
    models = draft.get(MODELS)
    for index, model in enumerate(models):
        if not model.model_path and model.engine_type != "external":
            draft.problem(
                "E1821",
                MODELS[index].model_path,
                f"`{MODELS[index].model_path}` is missing",
                suggestion="write the folder of a Hugging Face model",
            )
    advantage = draft.config.algorithm.advantage_fn
    entry = draft.catalogue.entry("advantage_fn", advantage)
    if entry is None or "teacher_logprobs" not in entry.reads:
        if not models:
            _check_workflows(draft)
        return
    if not models:
        draft.problem(
            "E1880",
            MODELS,
            f"`{MODELS}` is empty: advantage_fn {advantage} needs a teacher, which is the first of them",
            rule="at least one model",
            involves=(KEYS.algorithm.advantage_fn, KEYS.algorithm.algorithm_type),
            suggestion="write `auxiliary_models: [{model_path: <folder of the teacher>}]` under `explorer`",
        )
        return
    if models[0].engine_type == "external":
        draft.problem(
            "E1869",
            MODELS[0].engine_type,
            f"`{MODELS[0]}` is the teacher of advantage_fn {advantage}, and an external model scores no given tokens",
            rule="an engine of the run",
            involves=(KEYS.algorithm.advantage_fn, KEYS.algorithm.algorithm_type),
            suggestion="write `engine_type: torch` and the folder of the teacher in `model_path`",
        )
        return
    longest, own = models[0].max_model_len, draft.config.model.max_model_len
    if longest is not None and own is not None and longest < own:
        draft.problem(
            "E1881",
            MODELS[0].max_model_len,
            f"`{MODELS[0].max_model_len}` ({longest}) must be at least model.max_model_len ({own}): the teacher scores "
            "what the student wrote",
            rule=f">= {own}",
            involves=(KEYS.model.max_model_len,),
            suggestion="remove it",
        )


def _check_workflows(draft: Draft) -> None:
    """Refuse a workflow that asks an auxiliary model where there is none: each of its rollouts would fail."""
    for key in tasksets(draft):
        workflow = draft.get(key.default_workflow_type)
        entry = draft.catalogue.entry("workflow", workflow)
        if entry is not None and "auxiliary_model" in entry.needs:
            draft.problem(
                "E1880",
                MODELS,
                f"`{MODELS}` is empty: workflow {workflow} of `{key}` needs a teacher, which is the first of them",
                rule="at least one model",
                involves=(key.default_workflow_type,),
                suggestion="write `auxiliary_models: [{model_path: <folder of the teacher>}]` under `explorer`",
            )
            return
