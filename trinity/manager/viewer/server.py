"""Start of the viewer's server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from trinity.manager.serving import check_streamlit, serve
from trinity.manager.viewer.settings import ViewerSettings


def serve_viewer(settings: ViewerSettings, *, port: int, say: Callable[[str], None]) -> NoReturn:
    """Become the process of the viewer's server; see `serve`.

    Args:
        settings: what is viewed.
        port: where it listens; 0: at a free one.
        say: is given the address of the page.

    Raises:
        EnvironmentProblem: Streamlit is not installed (E3301), the port is taken (E3431), or there is nothing to view
            (E3435).
    """
    check_streamlit("viewer")
    from trinity.buffer.records import Records

    Records(settings.url).close()
    page = Path(__file__).with_name("page.py")
    serve(page, what="viewer", port=port, environment=settings.environment(), say=say)
