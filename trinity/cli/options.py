"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key: a.b=c or stages[1].a.b=c; may be repeated.")
]
PluginDirs = Annotated[
    list[Path] | None,
    typer.Option("--plugin-dir", "--plugin_dir", help="Folder of plugin modules; may be given several times."),
]
File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="YAML file, in place of --config.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file.")]


def chosen_file(file: Path | None, config: Path | None) -> Path:
    """Return the YAML file, which is given in one of two ways.

    Raises:
        typer.BadParameter: it is given in both or in none.
    """
    if file is not None and config is not None:
        raise typer.BadParameter(f"two files are given, {file} and {config}; give one", param_hint="--config")
    given = file or config
    if given is None:
        raise typer.BadParameter("no file is given; write `--config FILE`, or the file alone", param_hint="--config")
    return given
