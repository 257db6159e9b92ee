"""`trinity quickstart`: from an empty folder to a trained model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.common.errors import TrinityError

if TYPE_CHECKING:
    from trinity.quickstart.summary import Summary


def quickstart(
    dir: Annotated[Path, typer.Option("--dir", help="Folder to write into; existing files are kept.")] = Path(
        "quickstart"
    ),
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Write the folder without running it.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of the data, the weights and the run.")] = 42,
) -> None:
    """Train a tiny model in a new folder and show what it learned.

    It first writes data, the model and a YAML file into the folder.
    """
    from trinity.quickstart.folder import prepare
    from trinity.summary.table import command

    try:
        folder = prepare(dir, seed=seed)
        verb = "Wrote" if folder.is_new else "Using the files in"
        typer.echo(f"{verb} {folder.directory}: data/, model/ and {folder.config.name}")
        if prepare_only:
            typer.echo(f"Run it:  {command('trinity')} run --config {folder.config}")
            return
        _run(folder.directory, folder.config, seed)
    except TrinityError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(int(error.exit_code)) from error


def _run(directory: Path, config: Path, seed: int) -> None:
    """Run the quickstart, and show and write its summary.

    Raises:
        typer.Exit: the run did not do everything it was asked for; with its exit status.
    """
    from trinity.cli.run import closing_lines, run_config
    from trinity.launch.run import RunOptions, plan_run
    from trinity.quickstart import summary as summaries
    from trinity.quickstart.baseline import initial_accuracy

    started = time.time()
    options = RunOptions()
    result = run_config(config, options)
    if result.exit_code:
        for line in closing_lines(result, config, options):
            typer.echo(line, err=True)
        raise typer.Exit(int(result.exit_code))
    plan = plan_run(config, options)
    done = [summaries.StageRun(stage.name or "", stage.job_dir, stage.seconds) for stage in result.stages]
    stages = summaries.planned_runs(plan, done, directory, started=started)
    # The plan of the last stage names the model that the first one started from.
    summary = summaries.summarize(stages, seed=seed, initial_accuracy=initial_accuracy(plan.stages[-1].config))
    curve = summaries.write_curve(summary, directory)
    path = summaries.write_summary(summary, directory)
    show(summary, [f"curve        {curve}", f"summary      {path}", *summaries.next_steps(summary, config)])


def show(summary: Summary, places: list[str]) -> None:
    """Print the table of the stages, and each of `places` on a line."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Quickstart", title_justify="left", title_style="bold")
    for column in ("stage", "steps", "seconds", "loss", "held-out accuracy (greedy)"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in summary.stages:
        # The loss of reinforcement says nothing about progress: it is near zero from the first step on.
        loss = "-" if stage.has_rollouts else _change(stage.loss_first, stage.loss_last, form="{:.3f}")
        accuracy = _change(stage.accuracy_before, stage.accuracy_after, form="{:.1%}")
        table.add_row(stage.name, str(stage.num_steps), f"{stage.seconds:.1f}", loss, accuracy)
    console = Console()
    console.print(table)
    speed = f", {summary.tokens_per_second:,.0f} trained tokens per second" if summary.tokens_per_second else ""
    typer.echo(f"{summary.run_seconds:.0f} seconds in all{speed}\n")
    for line in places:
        typer.echo(line)


def _change(before: float | None, after: float | None, *, form: str) -> str:
    """Return `before -> after`, with a dash for what was not measured."""
    texts = ["-" if value is None else form.format(value) for value in (before, after)]
    return "-" if texts == ["-", "-"] else " -> ".join(texts)
