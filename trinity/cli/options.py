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
