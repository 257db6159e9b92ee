"""`trinity validate`: all problems of a YAML file before anything starts.

Needs no GPU and no network, imports neither torch nor transformers, and writes nothing but answers of Data-Juicer about
its operators, into the cache. Only `--fetch` asks the network, and writes copies into the cache. Only `--probe`
computes: it imports both, and the plugins, and writes a small model into a temporary folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, Words, chosen_with_words
from trinity.common.errors import ExitCode
from trinity.runtime.collector import collecting_nothing
from trinity.utils.log import redact

if TYPE_CHECKING:
    from trinity.common.config import Finding, Plan, StagePlan
    from trinity.explain.probe import ProbeReport


def validate(
    file: File = None,
    words: Words = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    schema_only: Annotated[
        bool,
        typer.Option("--schema-only", help="Check the file alone, without what depends on this machine and version."),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Change each setting of the loss on synthetic data and list those without effect; score one task.",
        ),
    ] = False,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download models and data that are given by address, and check them too.")
    ] = False,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Check a YAML file and show its derived values; start nothing."""
    with collecting_nothing():
        from trinity.common.config import ConfigErrors
        from trinity.launch.validation import check

    (path, overrides), folders = chosen_with_words(file, config, words, set_), tuple(plugin_dir or ())
    try:
        with collecting_nothing():
            plan, problems = check(path, overrides, plugin_dirs=folders, schema_only=schema_only, fetches=fetch)
    except ConfigErrors as error:
        plan, problems = None, error.problems
    reports: list[ProbeReport] | None = None
    if probe and plan is not None and not any(problem.is_error for problem in problems):
        from trinity.explain.probe_report import probe_plan

        reports, found = probe_plan(plan, overrides, plugin_dirs=folders)
        problems += found
    typer.echo(_as_json(plan, problems, reports) if as_json else _as_text(path, plan, problems, reports))
    errors = [problem for problem in problems if problem.is_error]
    raise typer.Exit(int(errors[0].exit_code if errors else ExitCode.DONE))


def _as_json(plan: Plan | None, problems: list[Finding], reports: list[ProbeReport] | None) -> str:
    from trinity.common.config.problems import shown_value
    from trinity.common.config.resolved import database_file

    stages = [
        {
            "name": stage.name,
            "job": stage.config.checkpoint_job_dir,
            "database": database_file(stage.config),
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
        from trinity.explain.probe_report import facts

        result["probe"] = [facts(report) for report in reports]
    return redact(json.dumps(result, indent=2, ensure_ascii=False))


def _as_text(path: Path, plan: Plan | None, problems: list[Finding], reports: list[ProbeReport] | None) -> str:
    errors = sum(problem.is_error for problem in problems)
    warnings = len(problems) - errors
    blocks = [problem.render() for problem in problems]
    if plan is not None and not errors:
        blocks += [_stage_text(stage) for stage in plan.stages]
    if reports is not None:
        from trinity.explain.probe_report import text

        blocks += [text(report) for report in reports]
    verdict = "valid" if not errors else f"{errors} error{'s' if errors != 1 else ''}"
    noted = f", {warnings} warning{'s' if warnings != 1 else ''}" if warnings else ""
    return redact("\n\n".join([*blocks, f"{path}: {verdict}{noted}"]))


def _stage_text(stage: StagePlan) -> str:
    from trinity.common.config.problems import shown_value
    from trinity.common.config.resolved import database_file

    rows = [d for d in stage.derived if not d.is_copy]
    width = max((len(d.key) for d in rows), default=0)
    title = f"stage {stage.name}, derived values:" if stage.name else "derived values:"
    lines = [title, *(f"  {d.key:<{width}}  {shown_value(d.key, d.value)}  ({d.reason})" for d in rows)]
    database = database_file(stage.config)
    if database:
        lines.append(f"  database file: {database}")
    return "\n".join(lines)
