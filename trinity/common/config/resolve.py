"""`resolve`: complete a checked configuration, with reasons.

Every derived value has its reason. The function is pure: it reads neither files nor devices and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from trinity.common.config.available import check_available
from trinity.common.config.base import Section
from trinity.common.config.catalogue import Catalogue
from trinity.common.config.config import Config
from trinity.common.config.explorer import ExplorerConfig
from trinity.common.config.keys import KEYS, present
from trinity.common.config.problems import Finding
from trinity.common.config.resolution import Derived, Resolution, plain_value
from trinity.common.config.resolved import monitors
from trinity.common.config.rules.algorithm import resolve_algorithm
from trinity.common.config.rules.batches import (
    check_groups,
    check_intervals,
    check_micro_batches,
    check_scope,
    resolve_batches,
    resolve_steps,
)
from trinity.common.config.rules.buffers import check_replay, check_unique_names, resolve_experience_buffer
from trinity.common.config.rules.critic import check_unused_critic, resolve_critic
from trinity.common.config.rules.data_juicer import check_service, resolve_task_pipeline
from trinity.common.config.rules.engines import check_auxiliary_models, resolve_engine, resolve_external
from trinity.common.config.rules.experience_pipeline import resolve_pipeline_input
from trinity.common.config.rules.job import (
    check_addresses,
    derive_names,
    resolve_cluster,
    resolve_resume,
    resolve_runtime,
)
from trinity.common.config.rules.mixture import check_sampling, resolve_auxiliary_buffers, resolve_mixed_loss
from trinity.common.config.rules.model import (
    check_model_paths,
    hand_down,
    resolve_adapter,
    resolve_lengths,
    suggest_long_sequences,
)
from trinity.common.config.rules.ranks import check_ranks, resolve_megatron, resolve_megatron_offload
from trinity.common.config.rules.registered import Chosen, check_arguments, check_name
from trinity.common.config.rules.rewards import (
    check_reshaping,
    check_reward_components,
    check_shaping,
    resolve_reward_model,
)
from trinity.common.config.rules.serve import resolve_serve
from trinity.common.config.rules.synchronizer import resolve_evaluation, resolve_staleness, resolve_synchronizer
from trinity.common.config.rules.taskset_mixture import check_taskset_mixture
from trinity.common.config.rules.tasksets import check_rewards, resolve_tasksets
from trinity.common.config.rules.trainer import check_derived_keys, check_refusals, check_schedule, resolve_trainer
from trinity.common.config.schema_index import variants
from trinity.common.config.tree import Path, Tree
from trinity.utils.log import is_secret_name

RULES: tuple[Callable[[Resolution], None], ...]


def resolve(
    config: Config,
    tree: Tree,
    *,
    catalogue: Catalogue,
    cwd: FilePath,
    stage_name: str | None = None,
    broken: Iterable[Path] = (),
    looks_at_machine: bool = True,
) -> tuple[Config, list[Derived], list[Finding]]:
    """Return the complete configuration, the derived values and the problems.

    Args:
        config: the typed configuration, without stages.
        tree: what was written, with places; a written value is never replaced silently.
        catalogue: the known names.
        cwd: the folder that relative paths refer to.
        stage_name: name of the stage, if the run has stages.
        broken: paths whose values were refused by the schema.
        looks_at_machine: the machine's hardware decides what the file leaves open.
    """
    resolution = Resolution(config, tree, catalogue, cwd, stage_name, looks_at_machine, set(broken))
    for rule in RULES:
        rule(resolution)
    # What is not available yet is a warning where only the file is looked at, which then is shown complete.
    errors = [problem for problem in resolution.problems if problem.is_error and problem.code != "E1900"]
    if errors or resolution.broken:
        return config, resolution.derived, resolution.problems
    return resolved_values(resolution), resolution.derived, resolution.problems


def resolved_values(resolution: Resolution) -> Config:
    """Return the completed configuration of a resolution."""
    return Config.model_validate(_meant(plain_value(resolution.config), Config, resolution.tree.values))


def _meant(values: dict[str, Any], model: type[Section], written: Any) -> dict[str, Any]:
    """Return the written and derived values, for `model_fields_set`."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        field = model.model_fields[name]
        is_written = isinstance(written, dict) and name in written
        inner = next((v for v in variants(field.annotation) if isinstance(v, type) and issubclass(v, Section)), None)
        if inner is not None and isinstance(value, dict):
            below = _meant(value, inner, written[name] if is_written else None)
            if below or is_written or field.default_factory is None:
                kept[name] = below
        elif is_written or value != plain_value(field.get_default(call_default_factory=True)):
            kept[name] = value
    return kept


def soften(problems: Iterable[Finding]) -> list[Finding]:
    """Return problems, with `not available yet` as warnings, for file checks."""
    return [replace(p, severity="warning") if p.code == "E1900" else p for p in problems]


def _check_names(resolution: Resolution) -> None:
    _check_monitor(resolution)
    for index, operator in enumerate(resolution.config.data_processor.experience_pipeline.operators):
        key = KEYS.data_processor.experience_pipeline.operators[index]
        if check_name(resolution, key.name, "operator", operator.name or "(none)"):
            check_arguments(resolution, Chosen(key.name, key.args, "operator", operator.name))


def _check_monitor(resolution: Resolution) -> None:
    """Check the monitors and their arguments, which they share.

    Those of another built-in monitor are a warning: one may change the type and keep the rest.
    """
    key, arguments = KEYS.monitor.monitor_type, present(KEYS.monitor.monitor_args)
    names = [n for n in monitors(resolution.config) if check_name(resolution, key, "monitor", n, unknown="E1301")]
    entries = [resolution.catalogue.entry("monitor", name) for name in names]
    if not names:
        return
    is_open = any(entry is None or entry.is_open for entry in entries)
    read = {argument for entry in entries if entry is not None for argument in entry.args}
    others = {n: of.args for n, of in resolution.catalogue.contents("monitor").items() if n not in names}
    unread = [] if is_open else [argument for argument in resolution.get(arguments) or {} if argument not in read]
    idle = {argument: other for argument in unread for other, known in others.items() if argument in known}
    for argument, other in idle.items():
        resolution.problem(
            "W1902",
            arguments[argument],
            f"`{arguments[argument]}` has no effect with monitor_type {', '.join(names)}: it is an argument of {other}",
            involves=(key,),
            suggestion="remove it",
        )
    # What one of several reads is no matter of the others, and what none reads is told once.
    of_others = read | (set(resolution.get(arguments) or {}) if is_open and len(names) > 1 else set())
    for number, name in enumerate(names):
        ignored = {*idle, *of_others, *(unread if number else ())}
        check_arguments(resolution, Chosen(key, arguments, "monitor", name), ignored=ignored)


def _check_secrets(resolution: Resolution) -> None:
    """Warn about secrets that the file has in plain text."""
    for path in resolution.tree.leaves():
        value = resolution.tree.get(path)
        words = [str(part) for part in path if isinstance(part, str)]
        if not words or not is_secret_name(words[-1]) or not isinstance(value, str) or value in ("", "EMPTY", "None"):
            continue
        chain = resolution.tree.origins.get(path, ())
        if any(origin.kind == "env" for origin in chain):
            continue
        owner = f"{'_'.join(monitors(resolution.config))}_" if words[0] == "monitor" else ""
        name = f"{owner}{words[-1]}".upper()
        key = ".".join(words)
        resolution.problems.append(
            resolution.tree.problem(
                "W1501",
                path,
                f"`{key}` holds a secret in plain text",
                suggestion=f"write ${{oc.env:{name}}} and set the environment variable",
            )
        )


def _check_unused(resolution: Resolution) -> None:
    """Warn about sections that were written for this run and are not read."""
    is_idle = resolution.mode == "train" and resolution.is_own(KEYS.explorer)
    if is_idle and resolution.typed.explorer != ExplorerConfig():
        resolution.problem("W1902", KEYS.explorer, "`explorer` has no effect in mode train")


def _check_config_path(resolution: Resolution) -> None:
    if resolution.is_given(KEYS.trainer.trainer_config_path) and resolution.is_given(KEYS.trainer.trainer_config):
        origin = resolution.origin(KEYS.trainer.trainer_config)
        written = resolution.config.trainer.trainer_config_path
        if origin is None or origin.file == str(written) or resolution.tree.get(("trainer", "trainer_config")) == {}:
            return
        resolution.problem(
            "E1806",
            KEYS.trainer.trainer_config_path,
            "`trainer.trainer_config_path` and trainer_config exclude each other",
            suggestion="keep one of them",
        )


RULES = (
    check_addresses,
    derive_names,
    check_model_paths,
    resolve_adapter,
    resolve_algorithm,
    resolve_lengths,
    resolve_external,
    resolve_runtime,
    resolve_engine,
    resolve_synchronizer,
    hand_down,
    resolve_batches,
    resolve_steps,
    resolve_task_pipeline,
    resolve_tasksets,
    check_taskset_mixture,
    resolve_evaluation,
    resolve_megatron_offload,
    resolve_trainer,
    resolve_critic,
    resolve_megatron,
    check_rewards,
    resolve_reward_model,
    resolve_resume,
    resolve_experience_buffer,
    resolve_auxiliary_buffers,
    resolve_staleness,
    check_replay,
    check_sampling,
    check_schedule,
    resolve_cluster,
    resolve_mixed_loss,
    resolve_pipeline_input,
    check_unique_names,
    check_micro_batches,
    check_scope,
    check_ranks,
    suggest_long_sequences,
    check_groups,
    check_intervals,
    check_auxiliary_models,
    resolve_serve,
    check_reward_components,
    check_reshaping,
    check_shaping,
    check_service,
    check_derived_keys,
    check_refusals,
    check_available,
    _check_config_path,
    _check_names,
    _check_secrets,
    _check_unused,
    check_unused_critic,
)
