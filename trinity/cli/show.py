"""`trinity show`: samples of a run, with what they said, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity.cli.options import Job, ended_with

if TYPE_CHECKING:
    from trinity.buffer.records import Order

NUMBER = 8


def show(
    job: Job,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="Training step that used the rollouts; with --eval the explore step."),
    ] = None,
    task: Annotated[
        str, typer.Option("--task", help="Task of the rollouts, as `batch/task`; with --eval its row number.")
    ] = "",
    worst: Annotated[int | None, typer.Option("--worst", min=1, help="How many to show, lowest rewards first.")] = None,
    best: Annotated[int | None, typer.Option("--best", min=1, help="How many to show, highest rewards first.")] = None,
    number: Annotated[int, typer.Option("-n", min=1, help="How many to show, the newest.")] = NUMBER,
    evaluated: Annotated[
        str | None,
        typer.Option("--eval", help="Name of an evaluation taskset, to show its rollouts; default step: the newest."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Database URL; needed if config.yaml hides its password.")
    ] = None,
) -> None:
    """Show rollouts of a run: prompt, response, reward and their fate.

    The last line counts all rollouts by what happened to them.
    """
    if worst is not None and best is not None:
        raise typer.BadParameter("--worst and --best exclude each other; give one", param_hint="--worst")
    with ended_with():
        from trinity.common.errors import DataError
        from trinity.launch.samples import Asked, fates_of, samples_of

        missing: DataError | None = None
        order: Order = "worst" if worst is not None else "best" if best is not None else "newest"
        asked = Asked(step=step, task=task, number=worst or best or number, order=order, taskset=evaluated)
        try:
            _print(samples_of(job, asked, url=url))
        except DataError as error:  # what happened to the rollouts says why there are none
            missing = error
        if evaluated is None:
            for buffer, fates in fates_of(job, url=url).items():
                typer.echo(f"rollouts of {buffer}: {fates}")
        if missing is not None:
            raise missing


def _print(samples: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from trinity.cli.rollouts import indented

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for sample in samples:
        texts = {name: sample.pop(name, None) for name in ("prompt", "response", "truth", "unreadable")}
        console.rule(", ".join(f"{name} {value}" for name, value in sample.items()), style="bold")
        for name, text in texts.items():
            if text is not None:
                console.print(name)
                console.print(indented(str(text)))
    console.rule()
    console.print(f"{len(samples)} samples")
