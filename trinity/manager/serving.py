"""Start of a Streamlit server for one page of this package."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from trinity.common.errors import EnvironmentProblem
from trinity.utils.packages import install_hint, is_installed
from trinity.utils.ports import taken

ADDRESS = "127.0.0.1"


def check_streamlit(what: str) -> None:
    """Refuse to serve a page where Streamlit is not installed.

    Args:
        what: the page is of, as messages call it.

    Raises:
        EnvironmentProblem: it is not installed (E3301).
    """
    if not is_installed("streamlit"):
        raise EnvironmentProblem(
            f"the {what} needs the package streamlit, which is not installed; run {install_hint('studio')}",
            code="E3301",
        )


def serve(page: Path, *, what: str, port: int, environment: Mapping[str, str], say: Callable[[str], None]) -> NoReturn:
    """Become the process of a page's server, which ends at Ctrl-C.

    It listens at the loopback address, below a path that nobody can guess.

    Args:
        page: the script of Streamlit.
        what: the page is of, as messages call it.
        port: where it listens; 0: at a free one.
        environment: variables that the page reads.
        say: is given the address of the page.

    Raises:
        EnvironmentProblem: Streamlit is not installed (E3301), or the port is taken (E3431).
    """
    check_streamlit(what)
    port = _free_port(port)
    path = secrets.token_urlsafe(16)
    say(f"{what}: http://{ADDRESS}:{port}/{path}/ (Ctrl-C ends it)")
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
    words = [sys.executable, "-m", "streamlit", "run", str(page)]
    words += [f"--{name}={value}" for name, value in options.items()]
    os.execve(sys.executable, words, os.environ | {**environment, "STREAMLIT_SERVER_BASE_URL_PATH": path})


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
