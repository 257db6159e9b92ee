"""`trinity export`: what a run has stored, as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.options import ended_with

if TYPE_CHECKING:
    from trinity.buffer.export import Form

export_app = typer.Typer(help="Write what a run has stored into files.", no_args_is_help=True)


@export_app.command()
def experience(
    job: Annotated[Path | None, typer.Argument(metavar="[JOB]", help="Folder of a run, with its config.yaml.")] = None,
    to: Annotated[str, typer.Option("--to", help="parquet or jsonl.")] = "parquet",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; `experience.<form>` if not given.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="A database, in place of JOB's.")] = None,
    buffer: Annotated[str, typer.Option("--buffer", help="Experience buffer; all of them if not given.")] = "",
    step: Annotated[int | None, typer.Option("--step", min=1, help="Training step that used them.")] = None,
) -> None:
    """Write experiences: texts, tokens, log-probabilities, rewards."""
    if job is None and url is None:
        raise typer.BadParameter("nothing is given to export; name the folder of a run, or --url", param_hint="JOB")
    if to not in ("parquet", "jsonl"):
        raise typer.BadParameter(f"must be parquet or jsonl, got {to!r}", param_hint="--to")
    with ended_with():
        from trinity.buffer.export import export_experiences
        from trinity.buffer.records import Records, Wanted
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
