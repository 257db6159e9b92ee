"""`trinity debug`: a workflow beside an engine that stays."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, StageName, chosen_file, ended_with
from trinity.cli.view import PORT
from trinity.common.errors import ExitCode

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.launch.trial.debugged import Debugged
    from trinity.launch.trial.output import Places
    from trinity.launch.trial.stage import TrialOptions

INFERENCE_MODEL, WORKFLOW, VIEWER = MODULES = ("inference_model", "workflow", "viewer")


def debug(
    module: Annotated[str, typer.Option("--module", "-m", help="Part to debug: inference_model, workflow or viewer.")],
    file: File = None,
    config: ConfigFile = None,
    output_file: Annotated[
        Path | None,
        typer.Option(
            "--output-file",
            "--output_file",
            help="File for the experiences, SQLite or .jsonl; .html: for the profile, too.",
        ),
    ] = None,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "--output_dir", "-o", help="Folder for the experiences and the profile.")
    ] = Path("debug_output"),
    disable_overwrite: Annotated[
        bool, typer.Option("--disable-overwrite", "--disable_overwrite", help="Keep the files of earlier calls.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", "--enable-profiling", "--enable_profiling", help="Write a profile of the run.")
    ] = False,
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=1, help="How many tasks to run.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            min=0,
            max=65535,
            help=f"Port of the endpoint (default: a free one) or of the page (default: {PORT}); 0: a free one.",
        ),
    ] = None,
    stage: StageName = None,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Keep an engine in one terminal and try a workflow in another.

    `--module inference_model` serves the file's models until Ctrl-C; `--module workflow` runs a task with them;
    `--module viewer` shows its experiences in a browser, until Ctrl-C.
    """
    from trinity.launch.trial.stage import TrialOptions

    _check_module(module)
    path = chosen_file(file, config)
    options = TrialOptions(tuple(set_ or ()), tuple(plugin_dir or ()), stage)
    with ended_with():
        if module == INFERENCE_MODEL:
            raise typer.Exit(int(_serve(path, options, port or 0)))
        from trinity.launch.trial.output import places, write_rollouts

        if module == VIEWER:
            written = places(output_file, output_dir, is_profiled=False, is_kept=False).experiences
            _view(path, options, written, PORT if port is None else port)
        given = places(output_file, output_dir, is_profiled=profile, is_kept=disable_overwrite)
        done = _attempt(path, options, tasks, given)
        write_rollouts(given.experiences, done.rollouts)
        _show(done, given.experiences)
    is_done = all(rollout.is_completed for rollout in done.rollouts)
    raise typer.Exit(int(ExitCode.DONE if is_done else ExitCode.RUNTIME))


def _check_module(module: str) -> None:
    if module not in MODULES:
        from trinity.common.config.nearest import nearest

        near = nearest(module, MODULES)
        hint = f"; did you mean `{near}`?" if near else ""
        typer.echo(f"error[E2001]: --module must be one of {', '.join(MODULES)}, got `{module}`{hint}", err=True)
        raise typer.Exit(int(ExitCode.USAGE))


def _serve(path: Path, options: TrialOptions, port: int) -> ExitCode:
    from trinity.launch.trial.served import serve_models
    from trinity.launch.trial.stage import trial_stage
    from trinity.runtime.event_loop import run_event_loop

    config = trial_stage(path, options)
    return run_event_loop(serve_models(config, port=port, say=typer.echo))


def _view(path: Path, options: TrialOptions, written: Path, port: int) -> NoReturn:
    from trinity.manager.viewer.of_run import settings_of, stage_viewed
    from trinity.manager.viewer.server import serve_viewer

    viewed = stage_viewed(path, overrides=options.overrides, plugin_dirs=options.plugin_dirs, stage=options.stage)
    serve_viewer(settings_of(viewed, url=str(written)), port=port, say=typer.echo)


def _attempt(path: Path, options: TrialOptions, count: int, given: Places) -> Debugged:
    from trinity.launch.trial.debugged import debug_tasks
    from trinity.launch.trial.profiling import profiled
    from trinity.launch.trial.session import first_tasks
    from trinity.launch.trial.stage import trial_stage
    from trinity.runtime.event_loop import run_event_loop

    given.check()
    config: Config = trial_stage(path, options)
    tasks = first_tasks(config, count)
    classes = [each for task in tasks for each in (task.workflow, task.reward_fn)]
    with profiled(given.profile, classes) if given.has_profile else nullcontext() as written:
        done = run_event_loop(debug_tasks(config, tasks, command=_start_command(path, options)))
    if written is not None:
        typer.echo(f"profile: {written}", err=True)
    return done


def _show(done: Debugged, experiences: Path) -> None:
    from trinity.cli.rollouts import show

    show(done.rollouts, words=done.words)
    typer.echo(f"experiences: {experiences}")


def _start_command(path: Path, options: TrialOptions) -> str:
    from trinity.common.config.masking import masked_override
    from trinity.launch.trial.announcement import command_of

    words = ["--config", str(path)]
    for folder in options.plugin_dirs:
        words += ["--plugin-dir", str(folder)]
    for override in options.overrides:
        words += ["--set", masked_override(override)[0]]
    words += ["--stage", options.stage] if options.stage else []
    return command_of(words, module=INFERENCE_MODEL)
