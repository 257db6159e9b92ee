"""`trinity validate`: everything that is wrong with a YAML file, before anything is started.

Needs no GPU and no network, imports neither torch nor transformers, and writes nothing. Only `--probe` computes: it
imports both, and the plugins, and writes a small model into a temporary folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity.cli.devices import check_devices
from trinity.cli.division import check_division_of
from trinity.cli.extras import check_extras_of
from trinity.cli.families import check_families_of
from trinity.cli.prompts import check_prompts_of
from trinity.common.errors import ExitCode
from trinity.utils.log import redact
from trinity.utils.memory import shown_bytes

if TYPE_CHECKING:
    from trinity.common.config import Catalogue, Config, Plan, Problem, StagePlan
    from trinity.common.config.buffer import ExperienceBufferConfig
    from trinity.launch.probe import ProbeReport

BYTES_PER_WEIGHT_BYTE = 6
OUTPUT = "buffer.trainer_input.experience_buffer"
TRUTH_REWARDS = ("math_reward", "accuracy_reward", "countdown_reward")


def validate(
    config: Annotated[Path, typer.Option("--config", "-c", help="YAML file to check.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    schema_only: Annotated[
        bool, typer.Option("--schema-only", help="Leave out what depends on this machine and this version.")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Change each setting of the loss on a dry batch and report what moves nothing; score one task.",
        ),
    ] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key: a.b=c or stages[1].a.b=c; may be repeated.")
    ] = None,
    plugin_dir: Annotated[
        list[Path] | None,
        typer.Option("--plugin-dir", "--plugin_dir", help="Folder of plugin modules; may be given several times."),
    ] = None,
) -> None:
    """Check a YAML file and show what follows from it; nothing is started."""
    from trinity.common.config import ConfigErrors

    overrides, folders = tuple(set_ or ()), tuple(plugin_dir or ())
    try:
        plan, problems = check(config, overrides, plugin_dirs=folders, schema_only=schema_only)
    except ConfigErrors as error:
        plan, problems = None, error.problems
    reports: list[ProbeReport] | None = None
    if probe and plan is not None and not any(problem.is_error for problem in problems):
        reports, found = _probed(plan, overrides, folders)
        problems += found
    typer.echo(_as_json(plan, problems, reports) if as_json else _as_text(config, plan, problems, reports))
    errors = [problem for problem in problems if problem.is_error]
    raise typer.Exit(int(errors[0].exit_code if errors else ExitCode.DONE))


def _probed(
    plan: Plan, overrides: tuple[str, ...], plugin_dirs: tuple[Path, ...]
) -> tuple[list[ProbeReport], list[Problem]]:
    """Return the reports of the gradient probe and their warnings; unlike the rest this imports plugins and torch."""
    from trinity.cli.probe import probe_plan

    return probe_plan(plan, overrides, plugin_dirs=plugin_dirs)


def check(
    path: Path, overrides: tuple[str, ...] = (), *, plugin_dirs: tuple[Path, ...] = (), schema_only: bool = False
) -> tuple[Plan, list[Problem]]:
    """Return the plan of a file and all problems, those of this machine included unless `schema_only`.

    Raises:
        ConfigErrors: the file cannot be read as YAML.
    """
    from trinity.catalogue import catalogue_of
    from trinity.catalogue import plugin_dirs as all_plugin_dirs
    from trinity.common.config import examine, plugin_dirs_of
    from trinity.common.models.hub import cached_model
    from trinity.launch.models import with_local_models

    catalogue, of_plugins = catalogue_of(all_plugin_dirs((*plugin_dirs, *plugin_dirs_of(path, overrides))))
    plan, problems = examine(path, overrides, catalogue=catalogue, schema_only=schema_only)
    problems = [*of_plugins, *problems, *_checked_at_run(plan, catalogue)]
    if not schema_only and not any(problem.is_error for problem in problems):
        problems += check_machine(with_local_models(plan, cached_model))
    return plan, problems


def _checked_at_run(plan: Plan, catalogue: Catalogue) -> Iterator[Problem]:
    from trinity.common.config import Problem

    for name in dict.fromkeys(stage.config.algorithm.algorithm_type for stage in plan.stages):
        entry = catalogue.entry("algorithm_type", name)
        if entry is not None and entry.has_check:
            message = f"`check_config` of algorithm_type {name} is code of a plugin; it is called when the run starts"
            yield Problem("W3910", "warning", "algorithm.algorithm_type", message)


def check_machine(plan: Plan) -> list[Problem]:
    """Return what this machine lacks for a plan: models, data, devices, a folder to write in, space."""
    from trinity.common.config.problems import unique

    found: list[Problem] = []
    written: set[str] = set()
    for stage in plan.stages:
        found += _looked_at(stage, "model.model_path", _check_model)
        found += _looked_at(stage, "model.model_path", check_families_of)
        found += _looked_at(stage, "model.critic_model_path", _check_critic)
        found += _looked_at(stage, "trainer", check_division_of)
        found += _looked_at(stage, "explorer.auxiliary_models", _check_auxiliary)
        found += _looked_at(stage, "trainer.trainer_config.reward_model.model.path", _check_reward_model)
        found += _looked_at(stage, "buffer", _check_data)
        found += _looked_at(stage, "buffer", partial(_check_tables, written=written))
        found += _looked_at(stage, "buffer", check_prompts_of)
        found += _looked_at(stage, "checkpoint_root_dir", _check_folder)
        found += check_extras_of(stage)
        found += _check_devices(stage)
        output = stage.config.buffer.trainer_input.experience_buffer
        written |= {str(output.path)} if output is not None and stage.config.mode != "train" else set()
    return unique(found)


def _looked_at(stage: StagePlan, key: str, check: Callable[[StagePlan], Iterator[Problem]]) -> list[Problem]:
    """Return what `check` finds; a path that the system cannot even look at is a problem of `key`."""
    try:
        return list(check(stage))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return [_problem(stage, "E3602", key, f"a path under `{key}` cannot be looked at: {reason}")]


def _problem(stage: StagePlan, code: str, key: str, message: str, suggestion: str | None = None) -> Problem:
    from trinity.common.config.draft import path_of

    return stage.tree.problem(code, path_of(key), message, suggestion=suggestion)


def _check_model(stage: StagePlan) -> Iterator[Problem]:
    from trinity.common.models.preflight import check_model_dir, syntax_findings
    from trinity.common.models.preflight_adapter import check_adapter_dir, check_targets

    model = stage.config.model
    for adapter in model.lora_configs or ():
        if adapter.path is None and model.model_path and stage.config.mode in ("both", "train"):
            folder, excluded = Path(model.model_path).expanduser(), adapter.exclude_modules
            found = check_targets(folder, target_modules=adapter.target_modules, exclude_modules=excluded)
            for key, finding in found:
                yield _problem(stage, finding.code, f"model.lora_configs[0].{key}", finding.message)
        if adapter.path is not None:
            for finding in check_adapter_dir(Path(adapter.path).expanduser()):
                yield _problem(stage, finding.code, "model.lora_configs[0].path", finding.message)
    dataset = _dataset(stage.config)
    own_template = dataset.format.chat_template if dataset is not None else None
    for finding in syntax_findings("format.chat_template", own_template) if own_template else ():
        yield _problem(stage, finding.code, f"{OUTPUT}.format.chat_template", finding.message)
    if not model.model_path:
        return
    for finding in check_model_dir(
        model.model_path,
        trust_remote_code=model.trust_remote_code,
        custom_chat_template=model.custom_chat_template,
        chat_template_path=model.chat_template_path,
        need_chat_template=own_template is None and (dataset is None or dataset.schema_type != "cpt"),
    ):
        template = "chat_template_path" if model.chat_template_path else "custom_chat_template"
        is_written = finding.code == "E3109" and (model.chat_template_path or model.custom_chat_template)
        yield _problem(stage, finding.code, f"model.{template if is_written else 'model_path'}", finding.message)


def _check_auxiliary(stage: StagePlan) -> Iterator[Problem]:
    from trinity.algorithm import ADVANTAGE_FN
    from trinity.common.models.preflight import check_model_dir
    from trinity.common.models.preflight_heads import check_teacher

    config = stage.config
    advantage = ADVANTAGE_FN.contents.get(config.algorithm.advantage_fn or "")
    for index, auxiliary in enumerate(config.explorer.auxiliary_models if config.mode != "train" else ()):
        if auxiliary.engine_type == "external":
            continue
        path, trusts = auxiliary.model_path or config.model.model_path, bool(auxiliary.trust_remote_code)
        found = check_model_dir(path, trust_remote_code=trusts, need_chat_template=False)
        if index == 0 and not found and advantage is not None and "teacher_logprobs" in advantage.needs:
            found = check_teacher(path, config.model.model_path)
        for finding in found:
            yield _problem(stage, finding.code, f"explorer.auxiliary_models[{index}].model_path", finding.message)


def _check_critic(stage: StagePlan) -> Iterator[Problem]:
    from trinity.common.models.preflight import check_model_dir
    from trinity.common.models.preflight_heads import check_critic

    model, critic = stage.config.model, stage.config.trainer.trainer_config.critic
    path = model.critic_model_path
    if not critic.enable or not path or path == model.model_path:
        return
    found = check_model_dir(
        path,
        trust_remote_code=model.trust_remote_code,
        need_chat_template=False,
        need_tokenizer=False,
        is_classifier=True,
    )
    for finding in found or check_critic(path, model.model_path):
        yield _problem(stage, finding.code, "model.critic_model_path", finding.message)


def _check_reward_model(stage: StagePlan) -> Iterator[Problem]:
    from trinity.common.models.preflight import check_model_dir
    from trinity.common.models.preflight_heads import check_reward_model

    section = stage.config.trainer.trainer_config.reward_model
    is_classifier = section.worker == "sequence_classifier"
    if not section.enable or stage.config.mode == "train" or not section.model.path or not is_classifier:
        return
    switches = section.model.input_tokenizer is not None
    found = check_model_dir(
        section.model.path,
        trust_remote_code=section.model.trust_remote_code,
        need_chat_template=switches,
        need_tokenizer=switches,
        is_classifier=True,
    )
    for finding in found or check_reward_model(section.model.path):
        yield _problem(stage, finding.code, "trainer.trainer_config.reward_model.model.path", finding.message)


def _check_data(stage: StagePlan) -> Iterator[Problem]:
    from trinity.buffer.preflight import check_taskset

    for key, source, needs_truth, schema in _datasets(stage.config):
        for code, message in check_taskset(
            source.path,
            split=source.split,
            subset_name=source.subset_name,
            fmt=source.format,
            where=key,
            needs_truth=needs_truth,
            schema=schema,
        ):
            yield _problem(stage, code, f"{key}.path", message)


def _check_tables(stage: StagePlan, *, written: set[str]) -> Iterator[Problem]:
    """Look at the demonstrations in databases, but for those that a stage before will write."""
    if stage.config.mode not in ("both", "train"):
        return
    for name, buffer in stage.config.buffer.trainer_input.auxiliary_buffers.items():
        if buffer.storage_type != "sql" or buffer.schema_type is None or buffer.path in written:
            continue
        from trinity.buffer.preflight import check_table

        key = f"buffer.trainer_input.auxiliary_buffers.{name}"
        found = check_table(buffer.path, name=buffer.name, fmt=buffer.format, schema=buffer.schema_type, where=key)
        for code, message in found:
            yield _problem(stage, code, f"{key}.path", message)


def _datasets(config: Config) -> Iterator[tuple[str, Any, bool, str | None]]:
    """Yield key and configuration of each dataset, whether a reward needs the truth, and the kind of training."""
    explorer_input = config.buffer.explorer_input
    if config.mode != "train":
        sources = [("taskset", explorer_input.taskset)] if explorer_input.taskset else []
        sources += [(f"eval_tasksets[{i}]", taskset) for i, taskset in enumerate(explorer_input.eval_tasksets)]
        for name, taskset in sources:
            reward = taskset.default_reward_fn_type
            is_math = "math" in (taskset.default_workflow_type or "")
            needs_truth = reward in TRUTH_REWARDS or (reward is None and is_math)
            yield f"buffer.explorer_input.{name}", taskset, needs_truth, None
    output = _dataset(config)
    if output is not None:
        yield OUTPUT, output, True, output.schema_type
    for name, dataset in config.buffer.trainer_input.auxiliary_buffers.items():
        if dataset.storage_type == "file" and dataset.schema_type == "sft":
            yield f"buffer.trainer_input.auxiliary_buffers.{name}", dataset, True, "sft"


def _dataset(config: Config) -> ExperienceBufferConfig | None:
    """Return the dataset that is trained on, if there is one."""
    output = config.buffer.trainer_input.experience_buffer
    return output if output is not None and output.storage_type == "file" and config.mode == "train" else None


def _check_folder(stage: StagePlan) -> Iterator[Problem]:
    job = Path(stage.config.checkpoint_job_dir)
    there = next(folder for folder in (job, *job.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is not a folder" if not there.is_dir() else "cannot be written"
        yield _problem(
            stage,
            "E3601",
            "checkpoint_root_dir",
            f"{there}, where {job} would be, {what}",
            "choose another checkpoint_root_dir",
        )
        return
    folders = [Path(stage.config.model.model_path)]
    if stage.config.trainer.trainer_config.critic.enable:
        folders.append(Path(stage.config.model.critic_model_path or folders[0]))
    weights = sum(file.stat().st_size for model in folders if model.is_dir() for file in model.glob("*.safetensors"))
    needed, free = 2 * BYTES_PER_WEIGHT_BYTE * weights, shutil.disk_usage(there).free
    if needed > free:
        yield _problem(
            stage,
            "W3702",
            "checkpoint_root_dir",
            f"two checkpoints may take {shown_bytes(needed)} and {shown_bytes(free)} are free at {there}",
            "choose a larger disk",
        )


def _check_devices(stage: StagePlan) -> Iterator[Problem]:
    for code, key, message, way_out in check_devices(stage.config):
        yield _problem(stage, code, key, message, way_out)


def _as_json(plan: Plan | None, problems: list[Problem], reports: list[ProbeReport] | None) -> str:
    from trinity.common.config.problems import shown_value

    stages = [
        {
            "name": stage.name,
            "job": stage.config.checkpoint_job_dir,
            "database": _database(stage),
            "derived": [
                {"key": d.key, "value": shown_value(d.key, d.value), "reason": d.reason} for d in stage.derived
            ],
        }
        for stage in (plan.stages if plan is not None else ())
    ]
    is_valid = not any(problem.is_error for problem in problems)
    result: dict[str, Any] = {"valid": is_valid, "problems": [problem.to_dict() for problem in problems]}
    result["stages"] = stages
    if reports is not None:
        from trinity.cli.probe import facts

        result["probe"] = [facts(report) for report in reports]
    return redact(json.dumps(result, indent=2, ensure_ascii=False))


def _as_text(path: Path, plan: Plan | None, problems: list[Problem], reports: list[ProbeReport] | None) -> str:
    errors = sum(problem.is_error for problem in problems)
    warnings = len(problems) - errors
    blocks = [problem.render() for problem in problems]
    if plan is not None and not errors:
        blocks += [_stage_text(stage) for stage in plan.stages]
    if reports is not None:
        from trinity.cli.probe import text

        blocks += [text(report) for report in reports]
    verdict = "valid" if not errors else f"{errors} error{'s' if errors != 1 else ''}"
    noted = f", {warnings} warning{'s' if warnings != 1 else ''}" if warnings else ""
    return redact("\n\n".join([*blocks, f"{path}: {verdict}{noted}"]))


def _stage_text(stage: StagePlan) -> str:
    from trinity.common.config.problems import shown_value

    rows = [d for d in stage.derived if not d.is_copy]
    width = max((len(d.key) for d in rows), default=0)
    title = f"stage {stage.name}, derived values:" if stage.name else "derived values:"
    lines = [title, *(f"  {d.key:<{width}}  {shown_value(d.key, d.value)}  ({d.reason})" for d in rows)]
    database = _database(stage)
    if database:
        lines.append(f"  database file: {database}")
    return "\n".join(lines)


def _database(stage: StagePlan) -> str | None:
    from trinity.common.config.rules.buffers import sqlite_file

    output = stage.config.buffer.trainer_input.experience_buffer
    return sqlite_file(output.path) if output is not None and output.storage_type != "file" else None
