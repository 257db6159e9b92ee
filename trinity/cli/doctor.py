"""`trinity doctor`: what this machine has and lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.options import Overrides, PluginDirs
from trinity.common.errors import ExitCode
from trinity.utils.log import redact

if TYPE_CHECKING:
    from trinity.preflight.doctor.look import Look

COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "error": typer.colors.RED}


def doctor(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Check what this YAML file needs, too.")] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Folder that runs will write to.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Check packages, GPUs, limits, folders and network of this machine.

    The exit status is 3 if something must be corrected before a run. No file is left behind, and no other machine is
    contacted.
    """
    from trinity.preflight.doctor import looks
    from trinity.preflight.doctor.look import ERROR, WARNING

    found: list[Look] = []
    for look in looks(folder):
        found.append(look)
        if not as_json:
            _print(look)
    if config is not None:
        found.append(_configuration(config, tuple(set_ or ()), tuple(plugin_dir or ())))
        if not as_json:
            _print(found[-1])
    number = {state: sum(look.state == state for look in found) for state in (ERROR, WARNING)}
    if as_json:
        report = {"ok": not number[ERROR], "checks": [look.facts() for look in found]}
        typer.echo(redact(json.dumps(report, indent=2, ensure_ascii=False)))
    else:
        typer.echo(f"\n{len(found)} checks: {number[ERROR]} with errors, {number[WARNING]} with warnings")
    raise typer.Exit(int(ExitCode.ENVIRONMENT if number[ERROR] else ExitCode.DONE))


def _print(look: Look) -> None:
    typer.secho(f"{look.state:<8}", fg=COLOURS[look.state], nl=False)
    typer.echo(f"{look.name:<14} {redact(look.found)}")
    for problem in look.problems:
        typer.echo(f"        [{problem.code}] {redact(problem.message)}")
        if problem.suggestion:
            typer.echo(f"        way out: {redact(problem.suggestion)}")


def _configuration(path: Path, overrides: tuple[str, ...], folders: tuple[Path, ...]) -> Look:
    """Return what `trinity validate` finds of a file."""
    from trinity.common.config import ConfigErrors
    from trinity.launch.validation import check
    from trinity.preflight.doctor.look import Look

    try:
        _, problems = check(path, overrides, plugin_dirs=folders)
    except ConfigErrors as error:
        problems = error.problems
    return Look("configuration", str(path), tuple(problems))
