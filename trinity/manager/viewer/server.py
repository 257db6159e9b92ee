"""Start of the viewer's server."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from trinity.common.errors import EnvironmentProblem
from trinity.manager.viewer.settings import ViewerSettings
from trinity.utils.packages import install_hint, is_installed
from trinity.utils.ports import taken

ADDRESS = "127.0.0.1"


def serve_viewer(settings: ViewerSettings, *, port: int, say: Callable[[str], None]) -> NoReturn:
    """Become the process of the viewer's server, which ends at Ctrl-C.

    It listens at the loopback address, below a path that nobody can guess.

    Args:
        settings: what is viewed.
        port: where it listens; 0: at a free one.
        say: is given the address of the page.

    Raises:
        EnvironmentProblem: Streamlit is not installed (E3301), the port is taken (E3431), or there is nothing to view
            (E3435).
    """
    if not is_installed("streamlit"):
        raise EnvironmentProblem(
            f"the viewer needs the package streamlit, which is not installed; run {install_hint('studio')}",
            code="E3301",
        )
    from trinity.buffer.records import Records

    Records(settings.url).close()
    port = _free_port(port)
    path = secrets.token_urlsafe(16)
    say(f"viewer: http://{ADDRESS}:{port}/{path}/ (Ctrl-C ends it)")
    sys.stdout.flush()
    options = {
        "server.address": ADDRESS,
        "server.port": port,
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "viewer",
        "logger.hideWelcomeMessage": "true",
    }
    page = Path(__file__).with_name("page.py")
    words = [sys.executable, "-m", "streamlit", "run", str(page)]
    words += [f"--{name}={value}" for name, value in options.items()]
    environment = os.environ | settings.environment() | {"STREAMLIT_SERVER_BASE_URL_PATH": path}
    os.execve(sys.executable, words, environment)


def _free_port(port: int) -> int:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((ADDRESS, port))
        except OSError as error:
            raise EnvironmentProblem(
                f"port {port} of {ADDRESS} cannot be listened at: {taken(port, error)}; give another --port, or 0",
                code="E3431",
            ) from error
        return int(tried.getsockname()[1])
