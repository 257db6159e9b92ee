"""`trinity env-check`: probe a workflow before a long run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, StageName, chosen_file, ended_with

if TYPE_CHECKING:
    from trinity.launch.env_check.findings import CheckFinding


def env_check(
    file: File = None,
    config: ConfigFile = None,
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=1, help="How many tasks, in the order of a run.")] = 4,
    repetitions: Annotated[
        int, typer.Option("--repetitions", min=2, help="How many passes over the tasks, to find leaks.")
    ] = 5,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.1, help="Longest time of a rollout in seconds; the file's limit if it is shorter."
        ),
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    stage: StageName = None,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Check a workflow with scripted policies instead of a model.

    It looks at determinism, leaks, timeouts, rewards and concurrency; no model is loaded and nothing is written.
    """
    from trinity.launch.env_check.checks import CheckOptions, check_environment
    from trinity.launch.env_check.findings import exit_code
    from trinity.launch.trial.stage import TrialOptions, trial_stage
    from trinity.runtime.event_loop import run_event_loop

    path = chosen_file(file, config)
    with ended_with(shows_log=False):
        chosen = trial_stage(path, TrialOptions(tuple(set_ or ()), tuple(plugin_dir or ()), stage))
        asked = CheckOptions(tasks=tasks, repetitions=repetitions, timeout_s=timeout)
        findings = run_event_loop(check_environment(chosen, asked))
        typer.echo(_as_json(findings) if as_json else _as_table(findings))
    raise typer.Exit(int(exit_code(findings)))


def _as_json(findings: list[CheckFinding]) -> str:
    return json.dumps([finding.to_dict() for finding in findings], indent=2, ensure_ascii=True)


def _as_table(findings: list[CheckFinding]) -> str:
    width = max(len(finding.check) for finding in findings)
    lines = [f"{each.level:<7}  {each.check:<{width}}  {each.message}" for each in findings]
    counts = [sum(each.level == level for each in findings) for level in ("error", "warning", "ok")]
    return "\n".join([*lines, "", f"{counts[0]} errors, {counts[1]} warnings, {counts[2]} ok"])
