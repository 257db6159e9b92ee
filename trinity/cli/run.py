"""`trinity run`: run the stages of a YAML file."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, Words, chosen_with_words
from trinity.cli.resume import ResumeCommand
from trinity.common.errors import ExitCode, TrinityError
from trinity.utils.log import get_logger, log_to_console, redact

if TYPE_CHECKING:
    from trinity.common.config import Plan
    from trinity.launch.run import RunOptions, RunResult
    from trinity.launch.side import ServedAt
    from trinity.launch.stage import StageResult

logger = get_logger("cli")


def run(
    file: File = None,
    words: Words = None,
    config: ConfigFile = None,
    plugin_dir: PluginDirs = None,
    set_: Overrides = None,
    accept_change: Annotated[
        list[str] | None,
        typer.Option("--accept-change", help="Resume although the value of this key has changed since the run began."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show warnings and errors only, no live progress.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON at the end: status and summaries.")] = False,
) -> None:
    """Run the stages of a YAML file.

    An interrupted run continues from its last checkpoint.
    """
    from trinity.launch.run import RunOptions
    from trinity.runtime.process_exit import flush_output

    path, overrides = chosen_with_words(file, config, words, set_)
    options = RunOptions(
        overrides=overrides,
        plugin_dirs=tuple(plugin_dir or ()),
        accepted_changes=tuple(accept_change or ()),
        is_quiet=quiet,
    )
    result = run_config(path, options)
    flush_output()  # what libraries have printed comes before the last lines
    if as_json:
        typer.echo(redact(json.dumps(outcome_facts(result, options), indent=2, ensure_ascii=False)))
    for line in () if as_json else (*summaries(options), *outcome_lines(result)):
        typer.echo(line)
    for line in closing_lines(result, path, options):
        typer.echo(line, err=True)
    raise typer.Exit(int(result.exit_code))


def run_config(path: Path, options: RunOptions) -> RunResult:
    """Plan, check and run `path` with live progress; report errors.

    Errors are printed, not raised; those that `closing_lines` says in one line are left to it.

    Args:
        path: the YAML file.
        options: overrides, plugins and listeners.

    Returns:
        The result, with the exit code of the run.
    """
    from trinity.launch.run import RunResult, checked_plan, unforeseen
    from trinity.runtime.process_exit import last_words

    log_to_console(is_quiet=options.is_quiet)
    try:
        plan = checked_plan(path, options)
        resume = ResumeCommand.of(path, options)
        options.command = resume.from_anywhere
        _show_plan(plan, is_quiet=options.is_quiet)
        with last_words(lambda _: typer.echo("\n".join(resume.lines()), err=True)):
            return _run_with_progress(plan, options)
    except TrinityError as error:
        _report(error)
        return RunResult(exit_code=error.exit_code, error=error)
    except Exception as error:  # noqa: BLE001  the one place that turns an unforeseen failure into an exit status
        typer.echo(redact("".join(traceback.format_exception(error))), err=True)
        return RunResult(exit_code=ExitCode.RUNTIME, error=unforeseen(error))


def summaries(options: RunOptions) -> list[str]:
    """Return the lines of the summary of each stage of a run.

    None with `--quiet`.
    """
    from trinity.launch.ending import job_summary
    from trinity.summary.facts import SUMMARY_NAME
    from trinity.summary.table import summary_lines
    from trinity.summary.words import is_chinese

    if options.is_quiet:
        return []
    left = [job_dir for job_dir in options.job_dirs if (job_dir / SUMMARY_NAME).exists()]
    in_chinese = is_chinese(os.environ)
    return [line for job_dir in left for line in (*summary_lines(job_summary(job_dir), is_chinese=in_chinese), "")]


def outcome_facts(result: RunResult, options: RunOptions) -> dict[str, Any]:
    """Return how a run ended, with the summary of each stage, for programs."""
    from trinity.launch.ending import job_summary

    return {
        "exit_code": int(result.exit_code),
        "error": None if result.error is None else str(result.error),
        "resume": options.command or None,
        "summaries": [asdict(job_summary(job_dir)) for job_dir in options.job_dirs],
    }


def outcome_lines(result: RunResult) -> list[str]:
    """Return one line for each stage that ran, and one for its rollouts.

    Mode bench gives a table.

    The line of a stage, which comes after that of its rollouts, says what it did, how long it took and where its
    outputs are.
    """
    from trinity.cli.evaluations import table_lines

    lines: list[str] = []
    for stage in result.stages:
        lines += table_lines(stage.evaluations)
        if stage.fates is not None:
            lines.append(f"rollouts: {stage.fates}")
        lines.append(
            f"{'stopped' if stage.stopped else 'done'}: {stage.name or 'run'}, {_progress(stage)}, "
            f"{stage.seconds:.1f} s, outputs in {stage.job_dir}"
        )
    return lines


def closing_lines(result: RunResult, path: Path, options: RunOptions) -> list[str]:
    """Return the last lines to print for a run that is not done.

    They hold the command that continues the run and, last, for a failed run, the cause and the log.
    """
    from trinity.common.config import ConfigErrors

    if result.exit_code == ExitCode.DONE or isinstance(result.error, ConfigErrors):
        return []
    lines = ResumeCommand.of(path, options).lines()
    if result.error is not None:
        cause = str(result.error).strip().split("\n", 1)[0]
        log = "" if options.log_dir is None else f"; log: {options.log_dir}"
        lines.append(redact(f"failed with exit code {int(result.exit_code)}: {cause}{log}"))
    return lines


def _progress(stage: StageResult) -> str:
    if stage.explore_step and not stage.training_step:
        return f"explore step {stage.explore_step}"
    return f"training step {stage.training_step}"


def _show_plan(plan: Plan, *, is_quiet: bool) -> None:
    for problem in plan.warnings:
        logger.warning("%s", problem.message)
    for stage in plan.stages:
        if is_quiet:
            continue
        for derived in stage.derived:
            logger.debug("derived %s = %s (%s)", derived.key, derived.value, derived.reason)


def _run_with_progress(plan: Plan, options: RunOptions) -> RunResult:
    from trinity.cli.progress import Progress
    from trinity.launch.run import run_plan

    if options.is_quiet:
        options.on_served = _served_printer(typer.echo)
        return run_plan(plan, options)
    progress = Progress()
    options.on_served = _served_printer(progress.print_line)
    if progress.is_live:
        log_to_console(write=progress.print_line)
    options.on_metrics = progress.on_metrics
    options.on_rollouts = progress.on_rollouts
    options.on_stage = progress.on_stage
    with progress:
        return run_plan(plan, options)


def _served_printer(say: Callable[[str], object]) -> Callable[[ServedAt], None]:
    """Return what tells the user, once, where mode serve answers."""

    def tell(served: ServedAt) -> None:
        token = served.token or "as in explorer.rollout_model.api_key"
        say(f"ready: {served.address}/v1, an OpenAI-compatible endpoint; Ctrl-C ends it")
        say(f"  api_key: {token}")

    return tell


def _report(error: TrinityError) -> None:
    from trinity.common.config import ConfigErrors

    text = error.format() if isinstance(error, ConfigErrors) else f"error[{error.code}]: {error.args[0]}"
    if isinstance(error, ConfigErrors) or "\n" in text.strip():  # of one line is what the last line says
        typer.echo(redact(text), err=True)
