"""Checks that trainer and engines support the families of the models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.common.models.experts import experts_problem
from trinity.common.models.families import critic_problem, trainer_problem, vllm_problem
from trinity.preflight.devices import is_cpu_build
from trinity.preflight.heads import CRITIC
from trinity.preflight.loading import check_loading
from trinity.preflight.model_dir import POLICY
from trinity.preflight.model_files import UnreadableFile, read_mapping

if TYPE_CHECKING:
    from trinity.common.config import Config


def check_families(config: Config) -> Iterator[Finding]:
    """Yield why models of a stage cannot train or sample.

    Reads their `config.json`; the vLLM check also depends on the installed build.
    """
    trains = config.mode in ("both", "train")
    if trains:
        yield from _of_trainer(config)
        yield from _of_experts(config)
    yield from _of_loading(config, trains=trains)
    if config.mode in ("both", "explore", "serve"):
        yield from _of_vllm(config)


def _of_trainer(config: Config) -> Iterator[Finding]:
    """Yield why policy or critic cannot be trained."""
    model, critic = config.model, config.trainer.trainer_config.critic
    problem = trainer_problem(_model_type(model.model_path))
    if problem is not None:
        yield Finding("E3130", POLICY, problem)
    elif critic.enable:
        problem = critic_problem(_model_type(model.critic_model_path or model.model_path))
        if problem is not None:
            yield Finding("E3120", CRITIC, problem)


def _of_experts(config: Config) -> Iterator[Finding]:
    """Yield which models ask for a loss of their experts."""
    detailed = config.trainer.trainer_config
    policy, critic = detailed.actor_rollout_ref.model.override_config, detailed.critic.model.override_config
    root = KEYS.trainer.trainer_config
    models = [(POLICY, config.model.model_path, root.actor_rollout_ref.model.override_config, policy)]
    if detailed.critic.enable and config.model.critic_model_path:
        models.append((CRITIC, config.model.critic_model_path, root.critic.model.override_config, critic))
    for key, path, name, overrides in models if config.model.model_path else ():
        try:
            written = read_mapping(Path(path).expanduser() / "config.json")
        except UnreadableFile:
            continue
        problem = experts_problem(written, overrides, key=str(name))
        if problem is not None:
            yield Finding("E3125", key, f"{path}: {problem}")


def _of_loading(config: Config, *, trains: bool) -> Iterator[Finding]:
    """Yield why models cannot be loaded, or served by the torch engine."""
    limit, engine = config.model.max_model_len, config.explorer.rollout_model.engine_type
    overrides = config.trainer.trainer_config.actor_rollout_ref.model.override_config
    models = [(POLICY, config.model.model_path, config.mode != "train" and engine == "torch", limit)]
    for index, auxiliary in enumerate(config.explorer.auxiliary_models if config.mode != "train" else ()):
        if auxiliary.engine_type == "torch" and auxiliary.model_path:
            key = str(KEYS.explorer.auxiliary_models[index].model_path)
            models.append((key, auxiliary.model_path, True, auxiliary.max_model_len or limit))
    for key, path, is_served, longest in models:
        if path and (is_served or trains):
            changed = overrides if key == POLICY else None
            yield from check_loading(path, is_served=is_served, max_model_len=longest, overrides=changed, key=key)


def _of_vllm(config: Config) -> Iterator[Finding]:
    """Yield why vLLM cannot sample for the policy."""
    if config.explorer.rollout_model.engine_type in ("vllm", "vllm_async"):
        is_cpu = not config.cluster.total_gpu_num and is_cpu_build()
        problem = vllm_problem(_model_type(config.model.model_path), is_cpu=is_cpu)
        if problem is not None:
            yield Finding("E3227", str(KEYS.explorer.rollout_model.engine_type), problem)


def _model_type(path: str | None) -> str:
    """Return the model family of a folder.

    Returns an empty string if the folder holds no model, which other checks report.
    """
    try:
        return str(read_mapping(Path(path or "").expanduser() / "config.json").get("model_type"))
    except (UnreadableFile, OSError):
        return ""
