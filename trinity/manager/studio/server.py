"""Start of the studio's server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from trinity.manager.draft import Draft
from trinity.manager.serving import serve
from trinity.manager.studio.settings import StudioSettings
from trinity.utils.plugin_loader import plugin_dirs


def serve_studio(settings: StudioSettings, *, port: int, say: Callable[[str], None]) -> NoReturn:
    """Become the process of the studio's server; see `serve`.

    Args:
        settings: what it begins with.
        port: where it listens; 0: at a free one.
        say: is given the address of the page.

    Raises:
        ConfigErrors: the YAML file cannot be read.
        ConfigError: a folder of plugins is not there (E3901).
        EnvironmentProblem: Streamlit is not installed (E3301), or the port is taken (E3431).
    """
    plugin_dirs(settings.plugin_dirs)
    if settings.file:
        Draft.of_file(Path(settings.file))
    page = Path(__file__).with_name("page.py")
    serve(page, what="studio", port=port, environment=settings.environment(), say=say)
