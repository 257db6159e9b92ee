"""`validate`: whether trainer and engines know how to compute the families of the models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinity.common.config import Finding, StagePlan

POLICY = "model.model_path"
CRITIC = "model.critic_model_path"


def check_families_of(stage: StagePlan) -> Iterator[Finding]:
    """Yield why the models of the stage cannot be trained or sample, from their `config.json` and what was found."""
    trains = stage.config.mode in ("both", "train")
    if trains:
        yield from _of_trainer(stage)
        yield from _of_experts(stage)
    yield from _of_loading(stage, trains=trains)
    if stage.config.mode in ("both", "explore"):
        yield from _of_vllm(stage)


def _problem(stage: StagePlan, code: str, key: str, message: str) -> Finding:
    from trinity.common.config.draft import path_of

    return stage.tree.problem(code, path_of(key), message)


def _of_trainer(stage: StagePlan) -> Iterator[Finding]:
    """Yield why policy or critic cannot be trained."""
    from trinity.common.models.families import critic_problem, trainer_problem

    model, critic = stage.config.model, stage.config.trainer.trainer_config.critic
    problem = trainer_problem(_model_type(model.model_path))
    if problem is not None:
        yield _problem(stage, "E3130", POLICY, problem)
    elif critic.enable:
        problem = critic_problem(_model_type(model.critic_model_path or model.model_path))
        if problem is not None:
            yield _problem(stage, "E3120", CRITIC, problem)


def _of_experts(stage: StagePlan) -> Iterator[Finding]:
    """Yield which models ask for a loss of their experts."""
    from trinity.common.models.preflight_experts import check_experts

    config, detailed = stage.config, stage.config.trainer.trainer_config
    policy, critic = detailed.actor_rollout_ref.model.override_config, detailed.critic.model.override_config
    models = [(POLICY, config.model.model_path, "actor_rollout_ref", policy)]
    if detailed.critic.enable and config.model.critic_model_path:
        models.append((CRITIC, config.model.critic_model_path, "critic", critic))
    for key, path, name, overrides in models:
        own = f"trainer.trainer_config.{name}.model.override_config"
        for finding in check_experts(path, overrides, key=own) if path else ():
            yield _problem(stage, finding.code, key, finding.message)


def _of_loading(stage: StagePlan, *, trains: bool) -> Iterator[Finding]:
    """Yield why models cannot be loaded as language models, or not be served by the torch engine."""
    from trinity.common.models.preflight_engine import check_loading

    config, limit = stage.config, stage.config.model.max_model_len
    engine = config.explorer.rollout_model.engine_type
    overrides = config.trainer.trainer_config.actor_rollout_ref.model.override_config
    models = [(POLICY, config.model.model_path, config.mode != "train" and engine == "torch", limit)]
    for index, auxiliary in enumerate(config.explorer.auxiliary_models if config.mode != "train" else ()):
        if auxiliary.engine_type == "torch" and auxiliary.model_path:
            key = f"explorer.auxiliary_models[{index}].model_path"
            models.append((key, auxiliary.model_path, True, auxiliary.max_model_len or limit))
    for key, path, is_served, longest in models:
        if path and (is_served or trains):
            changed = overrides if key == POLICY else None
            for finding in check_loading(path, is_served=is_served, max_model_len=longest, overrides=changed):
                yield _problem(stage, finding.code, key, finding.message)


def _of_vllm(stage: StagePlan) -> Iterator[Finding]:
    """Yield why vLLM cannot sample for the policy."""
    from trinity.common.models.vllm_families import family_problem, is_cpu_build

    rollout, model = stage.config.explorer.rollout_model, stage.config.model
    if rollout.engine_type in ("vllm", "vllm_async"):
        is_cpu = not stage.config.cluster.total_gpu_num and is_cpu_build()
        problem = family_problem(_model_type(model.model_path), is_cpu=is_cpu)
        if problem is not None:
            yield _problem(stage, "E3227", "explorer.rollout_model.engine_type", problem)


def _model_type(path: str | None) -> str:
    """Return the family of the model in a folder; empty for what is no model's folder, which others report."""
    from trinity.common.models.preflight import Unreadable, read_mapping

    try:
        return str(read_mapping(Path(path or "").expanduser() / "config.json").get("model_type"))
    except (Unreadable, OSError):
        return ""
