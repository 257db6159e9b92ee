"""`trinity export`: what a run has stored, as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.completion import jobs
from trinity.cli.options import Job, PluginDirs, ended_with

if TYPE_CHECKING:
    from trinity.buffer.export import Form
    from trinity.launch.reuse.demonstrations import Choose

Output = Annotated[Path, typer.Option("--output", "-o", help="JSON lines file to write.")]
Url = Annotated[str | None, typer.Option("--url", help="Database URL; needed if config.yaml hides its password.")]

export_app = typer.Typer(help="Export what a run has stored to files.", no_args_is_help=True)


@export_app.command()
def experience(
    job: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB]", help="Folder of a job, with its config.yaml.", autocompletion=jobs),
    ] = None,
    to: Annotated[str, typer.Option("--to", help="Format of the file: parquet or jsonl.")] = "parquet",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: `experience.<format>`.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Database URL, instead of that of JOB.")] = None,
    buffer: Annotated[str, typer.Option("--buffer", help="Name of an experience buffer; default: all of them.")] = "",
    step: Annotated[
        int | None, typer.Option("--step", min=1, help="Only experiences that this training step used.")
    ] = None,
) -> None:
    """Export experiences: texts, tokens, log-probabilities and rewards."""
    if job is None and url is None:
        raise typer.BadParameter("nothing is given to export; give the folder of a job, or --url", param_hint="JOB")
    if to not in ("parquet", "jsonl"):
        raise typer.BadParameter(f"must be parquet or jsonl, got {to!r}", param_hint="--to")
    with ended_with():
        from trinity.buffer.export import export_experiences
        from trinity.buffer.records import Records
        from trinity.buffer.wanted import Wanted
        from trinity.launch.samples import place_of

        place, run = (url or "", "") if job is None else place_of(job, url=url)
        records = Records(place)
        try:
            form: Form = "parquet" if to == "parquet" else "jsonl"
            file = output or Path(f"experience.{to}")
            number, lacking = export_experiences(records, Wanted(buffer=buffer, run=run, step=step), file, form=form)
        finally:
            records.close()
        without = f", {lacking} of them without tokens, which were pruned (buffer.keep_payloads)" if lacking else ""
        typer.echo(f"{file}: {number} experiences{without}")


@export_app.command()
def sft(
    job: Job,
    output: Output = Path("sft.jsonl"),
    best: Annotated[int, typer.Option("--best", min=1, help="How many responses of each task, the best first.")] = 1,
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", help="Leave out responses with a lower reward.")
    ] = None,
    url: Url = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Export the best responses to each task as conversations for SFT."""
    with ended_with():
        from trinity.launch.reuse.demonstrations import best_answers

        _write_dataset(job, output, best_answers(number=best, least_reward=min_reward), url, plugin_dir)


@export_app.command()
def dpo(
    job: Job,
    output: Output = Path("dpo.jsonl"),
    min_gap: Annotated[
        float, typer.Option("--min-gap", min=0.0, help="Smallest difference of the rewards of a pair.")
    ] = 0.0,
    url: Url = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Export the best and the worst response to each task as pairs for DPO."""
    with ended_with():
        from trinity.launch.reuse.demonstrations import best_and_worst

        _write_dataset(job, output, best_and_worst(least_gap=min_gap), url, plugin_dir)


def _write_dataset(job: Path, output: Path, choose: Choose, url: str | None, plugin_dir: list[Path] | None) -> None:
    from trinity.launch.reuse.demonstrations import write_dataset
    from trinity.launch.reuse.past_run import PastRun

    found = write_dataset(PastRun.of(job, url=url, plugin_dirs=tuple(plugin_dir or ())), output, choose)
    typer.echo(f"{output}: {found.rows} rows")
    for number, why in (
        (found.repeated, "more are equal to one that is written already"),
        (found.unfit, "rollouts are cut short, or have no reward"),
        (found.gone, "rollouts have no payload any more (buffer.keep_payloads)"),
    ):
        if number:
            typer.echo(f"{number} {why}")
    typer.echo("read it with format: {prompt_type: messages, messages_key: messages}")
