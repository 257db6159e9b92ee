"""`trinity try`: roll out a few tasks, and train nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, StageName, chosen_file, ended_with
from trinity.common.errors import ExitCode

if TYPE_CHECKING:
    from trinity.launch.trial.rollouts import Rollout
    from trinity.launch.trial.stage import TrialOptions


def try_tasks(
    file: File = None,
    config: ConfigFile = None,
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=1, help="How many tasks, in the order of a run.")] = 4,
    repeat_times: Annotated[int, typer.Option("--repeat-times", min=1, help="Number of rollouts of each task.")] = 1,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Print every token with its mask and log-probability.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the experiences: JSON lines (.jsonl) or SQLite."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    stage: StageName = None,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Roll out a few tasks in this process, without training.

    It uses the engine, workflow and reward function of the file, and prints prompts, responses and scores.
    """
    from trinity.launch.trial.output import write_rollouts
    from trinity.launch.trial.replaced import refuse_unfit
    from trinity.launch.trial.stage import TrialOptions

    options = TrialOptions(tuple(set_ or ()), tuple(plugin_dir or ()), stage)
    path = chosen_file(file, config)
    with ended_with():
        if output is not None:
            refuse_unfit(output)
        rollouts, words = _tried(path, options, tasks, repeat_times)
        if output is not None:
            write_rollouts(output, rollouts)
        _show(rollouts, words if tokens else None, as_json=as_json)
    is_done = all(rollout.is_completed for rollout in rollouts)
    raise typer.Exit(int(ExitCode.DONE if is_done else ExitCode.RUNTIME))


def _tried(path: Path, options: TrialOptions, count: int, repeat_times: int) -> tuple[list[Rollout], Mapping[int, str]]:
    from trinity.launch.trial.session import attempted, first_tasks, own_engines
    from trinity.launch.trial.stage import trial_stage
    from trinity.runtime.event_loop import run_event_loop

    async def work() -> tuple[list[Rollout], Mapping[int, str]]:
        async with own_engines(config) as engines:
            found = await attempted(config, engines, tasks)
            return found, {number: text for text, number in engines[0].vocabulary().items()}

    config = trial_stage(path, options)
    tasks = first_tasks(config, count, repeat_times=repeat_times)
    return run_event_loop(work())


def _show(rollouts: list[Rollout], words: Mapping[int, str] | None, *, as_json: bool) -> None:
    from trinity.cli.rollouts import show

    if not as_json:
        show(rollouts, words=words)
        return
    facts: Callable[[Rollout], dict[str, Any]] = lambda each: each.facts(has_tokens=words is not None)  # noqa: E731
    typer.echo(json.dumps([facts(rollout) for rollout in rollouts], indent=2, ensure_ascii=True))
