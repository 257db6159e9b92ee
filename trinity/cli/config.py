"""`trinity config`: the schema, and each value of a file with its origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, Words, chosen_with_words
from trinity.common.errors import ExitCode
from trinity.utils.log import redact

if TYPE_CHECKING:
    from trinity.common.config import StagePlan

config_app = typer.Typer(help="Print the schema, or a complete configuration.", no_args_is_help=True)


@config_app.command()
def schema(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder to write trinity.schema.json into; default: print it.")
    ] = None,
) -> None:
    """Print the JSON schema of the configuration file, for editors."""
    from trinity.explain.editor_schema import SCHEMA_LINE, editor_schema, write_schema

    if folder is None:
        typer.echo(json.dumps(editor_schema(), indent=2, ensure_ascii=False))
        return
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="--folder")
    typer.echo(f"{write_schema(folder)}: begin a file beside it with `{SCHEMA_LINE}`")


@config_app.command()
def show(
    file: File = None,
    words: Words = None,
    config: ConfigFile = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value comes from.")] = False,
    effective_loss: Annotated[
        bool, typer.Option("--effective-loss", help="Show the loss of each stage as a formula with its numbers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Print the complete configuration of every stage, secrets hidden."""
    from trinity.common.config import ConfigErrors
    from trinity.launch.validation import check

    path, overrides = chosen_with_words(file, config, words, set_)
    try:
        plan, problems = check(path, overrides, plugin_dirs=tuple(plugin_dir or ()), schema_only=True)
    except ConfigErrors as error:
        typer.echo(error.format(), err=True)
        raise typer.Exit(int(error.exit_code)) from error
    errors = [problem for problem in problems if problem.is_error]
    for problem in errors:
        typer.echo(problem.render(), err=True)
    if effective_loss and not errors:
        typer.echo(redact(_losses(plan.stages, as_json=as_json)))
    elif effective_loss:
        typer.echo("no effective loss: the file has errors", err=True)
    elif as_json:
        typer.echo(redact(json.dumps([_rows(stage, origin) for stage in plan.stages], indent=2, ensure_ascii=False)))
    else:
        typer.echo(redact("\n".join(_text(stage, has_origin=origin) for stage in plan.stages)))
    raise typer.Exit(int(errors[0].exit_code if errors else ExitCode.DONE))


def _losses(stages: list[StagePlan], *, as_json: bool) -> str:
    from trinity.explain.effective_loss import effective_loss

    found = [effective_loss(stage) for stage in stages]
    if as_json:
        return json.dumps([loss.facts() for loss in found], indent=2, ensure_ascii=False)
    return "\n\n".join(loss.text() for loss in found)


def _rows(stage: StagePlan, has_origin: bool) -> dict[str, object]:
    from trinity.common.config import origins

    rows = origins(stage.config, stage.tree, stage.derived)
    if not has_origin:
        rows = [{"key": row["key"], "value": row["value"]} for row in rows]
    return {"stage": stage.name, "values": rows}


def _text(stage: StagePlan, *, has_origin: bool) -> str:
    from trinity.common.config import dump_config, origins

    title = [f"# stage {stage.name}"] if stage.name else []
    if not has_origin:
        return "\n".join([*title, dump_config(stage.config, stage.references)])
    rows = origins(stage.config, stage.tree, stage.derived)
    return "\n".join([*title, *(f"{row['key']} = {row['value']}  <- {', '.join(row['origin'])}" for row in rows)])
