"""A real server of MLflow on a free port of this machine, which can be stopped and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

START_S = 120.0  # on a busy machine


def free_port() -> int:
    """Return a port of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class MlflowServer:
    """A server whose runs lie in a folder.

    Args:
        folder: of its database, its files and its log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port),
                 "--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}", "--workers", "1",
                 "--artifacts-destination", str(self._folder / "artifacts")],
                stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.uri}/version", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError((self._folder / "server.log").read_text())

    def stop(self) -> None:
        """Kill it with all its workers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=60)
            self._process = None
