"""Rules of engines: type, keys of one type, external models, teachers."""

from __future__ import annotations

import importlib.util

from trinity.common.config.config import Config
from trinity.common.config.engine_refusals import (
    REPLICAS,
    divisions,
    foreign_arguments,
    shared_replicas,
    torch_refusals,
    vllm_refusals,
)
from trinity.common.config.following import note_idle
from trinity.common.config.keys import KEYS, ROLLOUT_MODEL, Key, last_part
from trinity.common.config.model import InferenceModelConfig
from trinity.common.config.resolution import Resolution
from trinity.common.config.rules.tasksets import tasksets
from trinity.common.constants import TOOL_CALL_PARSERS
from trinity.utils.gpu import has_gpu

MODELS = KEYS.explorer.auxiliary_models
SHARED = KEYS.model.external_model
EXTERNAL = "external"
ISOLATION = KEYS.explorer.runner_isolation


def engines(config: Config) -> list[Key[InferenceModelConfig]]:
    """Return the keys of all engines' sections, the trained model's first."""
    return [ROLLOUT_MODEL, *(MODELS[index] for index in range(len(config.explorer.auxiliary_models)))]


def resolve_engine(resolution: Resolution) -> None:
    """Fill the engine types, the isolation of runners and their number."""
    _resolve_types(resolution)
    if resolution.get(ISOLATION) == "auto":
        _resolve_isolation(resolution)
    runners = resolution.config.explorer.runner_num
    if runners is not None and not resolution.is_given(KEYS.explorer.runner_per_model):
        per_model = max(1, runners // resolution.config.explorer.rollout_model.engine_num)
        resolution.derive(KEYS.explorer.runner_per_model, per_model, "runner_num over engine_num")


def _resolve_isolation(resolution: Resolution) -> None:
    limit = KEYS.explorer.runner_memory_bytes
    if resolution.config.cluster.runtime == "ray":
        resolution.derive(ISOLATION, "process", "a cluster places runners anywhere")
    elif resolution.get(limit) is not None:
        resolution.derive(ISOLATION, "process", f"{limit} limits a process")
    else:
        resolution.derive(ISOLATION, "thread", "the least memory, and started at once")


def _resolve_types(resolution: Resolution) -> None:
    """Choose the engine for `auto`; check the model's keys against its engine."""
    if not resolution.explores:
        return
    for model in engines(resolution.config):
        key = model.engine_type
        if resolution.get(key) == "auto":
            resolution.derive(key, *_chosen_engine(resolution, model))
        elif resolution.get(key) == "vllm_async":
            resolution.derive(key, "vllm", "vllm_async means vllm")
        _spread_replicas(resolution, model)
        if resolution.get(model.enable_auto_tool_choice) and resolution.get(model.tool_call_parser) is None:
            resolution.problem(
                "E1617",
                model.enable_auto_tool_choice,
                f"`{model.enable_auto_tool_choice}: true` needs the form of the model's tool calls",
                suggestion=f"set {model.tool_call_parser} to one of {', '.join(TOOL_CALL_PARSERS)}",
            )
        if resolution.get(key) == "vllm":
            for refusal in vllm_refusals(resolution.config, model):
                resolution.refuse(refusal)
        elif resolution.get(key) == "torch":
            _check_torch(resolution, model)


def _chosen_engine(resolution: Resolution, model: Key[InferenceModelConfig]) -> tuple[str, str]:
    """Return the engine for `auto`, from the file, then the machine; and why."""
    for key in divisions(model):
        if resolution.get(key) > 1:
            return "vllm", f"{last_part(key)} above 1 needs it"
    foreign = foreign_arguments(resolution.config, model)
    if foreign:
        return "vllm", f"extra_engine_args.{foreign[0]} is an argument of vLLM"
    if not resolution.looks_at_machine and not resolution.config.deterministic:
        return "auto", "the machine that runs it decides"
    return best_engine(is_deterministic=resolution.config.deterministic, sees_gpus=_sees_gpus(resolution))


def _spread_replicas(resolution: Resolution, model: Key[InferenceModelConfig]) -> None:
    """Make each replica an engine.

    `engine_num` becomes the number of replicas, and the requests of an engine are those of one replica.
    """
    key, number = model.data_parallel_size, model.engine_num
    size = resolution.get(key)
    if size == 1:
        return
    refusals = list(shared_replicas(resolution.config, model))
    for refusal in refusals:
        resolution.refuse(refusal)
    if refusals:
        return
    resolution.derive(number, resolution.get(number) * size, f"{key} {size}: {REPLICAS}")
    resolution.derive(key, 1, f"each replica is one of {number}")


def _sees_gpus(resolution: Resolution) -> bool:
    """Return whether engines see GPUs; on Ray, only those requested count."""
    return resolution.config.cluster.runtime != "ray" or resolution.config.cluster.gpu_per_node > 0


def best_engine(*, is_deterministic: bool, sees_gpus: bool = True) -> tuple[str, str]:
    """Return the engine that `auto` selects on this machine, and why.

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


def _check_torch(resolution: Resolution, model: Key[InferenceModelConfig]) -> None:
    for refusal in torch_refusals(resolution.config, model):
        resolution.refuse(refusal)
    note_idle(resolution, model, is_written=resolution.is_given)


def resolve_external(resolution: Resolution) -> None:
    """Use the server of section `model` for benchmarks; check external models."""
    if not resolution.explores:
        return
    if resolution.get(SHARED.enable):
        _resolve_shared(resolution)
    external = [model for model in engines(resolution.config) if resolution.get(model.engine_type) == EXTERNAL]
    for key in external:
        _check_external(resolution, key)
    if ROLLOUT_MODEL in external and resolution.mode != "bench":
        resolution.problem(
            "E1869",
            ROLLOUT_MODEL.engine_type,
            f"`{ROLLOUT_MODEL.engine_type}: external` cannot be trained: the server takes no new weights",
            rule="an engine of the run, except in mode bench",
            involves=(KEYS.mode, SHARED.enable),
            suggestion="write `engine_type: torch`, or make the server an auxiliary model",
        )
    if external and resolution.config.deterministic:
        resolution.problem(
            "E1869",
            external[0].engine_type,
            f"`{external[0].engine_type}: external` cannot be repeated: `deterministic: true` needs engines of the run",
            rule="no external model with deterministic: true",
            involves=(KEYS.deterministic,),
            suggestion="write `deterministic: false`, or `engine_type: torch`",
        )


def _resolve_shared(resolution: Resolution) -> None:
    engine = ROLLOUT_MODEL.engine_type
    if resolution.mode != "bench":
        resolution.problem(
            "E1869",
            SHARED.enable,
            f"`{SHARED}` is for mode bench: a server takes no new weights, and mode is {resolution.mode}",
            rule="mode bench",
            involves=(KEYS.mode,),
            suggestion=f"remove it, or write `{MODELS}: [{{engine_type: external, external_model_config: {{...}}}}]`",
        )
    elif not resolution.is_given(engine) or resolution.get(engine) == "auto":
        resolution.derive(engine, EXTERNAL, SHARED.enable)


def _check_external(resolution: Resolution, model: Key[InferenceModelConfig]) -> None:
    own = resolution.get(model.external_model_config) or resolution.get(SHARED)
    if not own.model_name and not resolution.get(model.name):
        resolution.problem(
            "E1821",
            model.external_model_config,
            f"`{model}` is external and names no model",
            involves=(SHARED, model),
            suggestion="write `external_model_config: {model_name: <name at the server>}`",
        )
    note_idle(resolution, model)


def check_auxiliary_models(resolution: Resolution) -> None:
    """Check the folders of auxiliary models, and that a teacher fits."""
    if not resolution.explores:
        return
    models = resolution.get(MODELS)
    for index, model in enumerate(models):
        if not model.model_path and model.engine_type != "external":
            resolution.problem(
                "E1821",
                MODELS[index].model_path,
                f"`{MODELS[index].model_path}` is missing",
                suggestion="write the folder of a Hugging Face model",
            )
    advantage = resolution.config.algorithm.advantage_fn
    entry = resolution.catalogue.entry("advantage_fn", advantage)
    if entry is None or "teacher_logprobs" not in entry.reads:
        if not models:
            _check_workflows(resolution)
        return
    if not models:
        _note_no_model(
            resolution,
            f"advantage_fn {advantage}",
            "a teacher",
            KEYS.algorithm.advantage_fn,
            KEYS.algorithm.algorithm_type,
        )
        return
    if models[0].engine_type == "external":
        resolution.problem(
            "E1869",
            MODELS[0].engine_type,
            f"`{MODELS[0]}` is the teacher of advantage_fn {advantage}, and an external model scores no given tokens",
            rule="an engine of the run",
            involves=(KEYS.algorithm.advantage_fn, KEYS.algorithm.algorithm_type),
            suggestion="write `engine_type: torch` and the folder of the teacher in `model_path`",
        )
        return
    longest, own = models[0].max_model_len, resolution.config.model.max_model_len
    if longest is not None and own is not None and longest < own:
        resolution.problem(
            "E1881",
            MODELS[0].max_model_len,
            f"`{MODELS[0].max_model_len}` ({longest}) must be at least model.max_model_len ({own}): the teacher scores "
            "what the student wrote",
            rule=f">= {own}",
            involves=(KEYS.model.max_model_len,),
            suggestion="remove it",
        )


def _check_workflows(resolution: Resolution) -> None:
    """Refuse a workflow whose auxiliary model is missing: all rollouts fail."""
    for key in tasksets(resolution):
        workflow = resolution.get(key.default_workflow_type)
        entry = resolution.catalogue.entry("workflow", workflow)
        if entry is not None and "auxiliary_model" in entry.needs:
            who, role = f"workflow {workflow} of `{key}`", "a teacher or a judge"
            _note_no_model(resolution, who, role, key.default_workflow_type)
            return


def _note_no_model(resolution: Resolution, who: str, role: str, *involves: Key[object]) -> None:
    folder = f"<folder of {role.replace('a ', 'the ')}>"
    resolution.problem(
        "E1880",
        MODELS,
        f"`{MODELS}` is empty: {who} needs {role}, which is the first of them",
        rule="at least one model",
        involves=involves,
        suggestion=f"write `auxiliary_models: [{{model_path: {folder}}}]` under `explorer`",
    )
