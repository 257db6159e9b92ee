"""`trinity studio`: configure, start and watch runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.options import ConfigFile, File, PluginDirs, ended_with

PORT = 8501
"""As published."""


def studio(
    file: File = None,
    config: ConfigFile = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port of the page; 0: a free one.")
    ] = PORT,
    folder: Annotated[Path, typer.Option("--folder", help="Folder whose runs are shown first.")] = Path(),
    plugin_dir: PluginDirs = None,
) -> None:
    """Configure, start and watch runs in a browser, until Ctrl-C."""
    if file is not None and config is not None:
        raise typer.BadParameter(f"two files are given, {file} and {config}; give one", param_hint="--config")
    chosen = config if file is None else Path(file)
    with ended_with():
        from trinity.manager.studio.server import serve_studio
        from trinity.manager.studio.settings import StudioSettings

        folders = tuple(str(each.expanduser().resolve()) for each in plugin_dir or ())
        settings = StudioSettings("" if chosen is None else str(chosen), folders, str(folder))
        serve_studio(settings, port=port, say=typer.echo)
