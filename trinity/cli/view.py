"""`trinity view`: the experiences of a run in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, StageName, chosen_file, ended_with

PORT = 8502
"""As published, of `trinity debug --module viewer` as well."""


def view(
    file: File = None,
    config: ConfigFile = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Database URL, or path of an SQLite file; default: that of the run.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="Name of an experience buffer; default: all of them.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Model whose tokenizer decodes the tokens; default: that of the run."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port of the page; 0: a free one.")
    ] = PORT,
    stage: StageName = None,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Show experiences in a browser on this machine, until Ctrl-C."""
    path = None if url is not None and file is None and config is None else chosen_file(file, config)
    with ended_with():
        from trinity.manager.viewer.of_run import settings_of, stage_viewed
        from trinity.manager.viewer.server import serve_viewer
        from trinity.manager.viewer.settings import ViewerSettings

        if path is None:
            settings = ViewerSettings(url or "", table or "", tokenizer or "")
        else:
            viewed = stage_viewed(path, overrides=set_ or (), plugin_dirs=plugin_dir or (), stage=stage)
            settings = settings_of(viewed, url=url, buffer=table or "", tokenizer=tokenizer or "")
        serve_viewer(settings, port=port, say=typer.echo)
