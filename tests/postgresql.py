"""A real PostgreSQL server for tests, on loopback, of the binaries that Debian's package `postgresql` brings."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

HOW = (
    "PostgreSQL is not installed, and these tests need a real server: run `apt-get install postgresql` (Debian, "
    "Ubuntu) or `brew install postgresql`, or have `pg_ctl` on the PATH"
)
_START_S = 60.0


def binaries() -> Path:
    """Return the folder with `initdb` and `postgres`; the newest where there are several."""
    on_path = shutil.which("pg_ctl")
    known = [Path(os.path.realpath(on_path)).parent] if on_path else []
    known += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    for folder in known:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.fail(HOW, pytrace=False)


class Server:
    """A server with a data folder of its own; tests begin and end it as they like.

    Attributes:
        port: on 127.0.0.1.
    """

    def __init__(self) -> None:
        self._bin = binaries()
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="postgresql"))
        # It refuses to run as root.
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        self.port = _free_port()
        options = ["-A", "trust", "-U", "trinity", "-E", "UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "-D", str(self._folder / "data"), *options)
        self.start()

    def database(self) -> str:
        """Make a database; return its URL."""
        name = f"test{next(self._numbers)}"
        with self._engine("postgres").connect() as connection:
            connection.execute(text(f"create database {name}"))
        return self.url(name)

    def url(self, name: str, *, port: int | None = None) -> str:
        """Return the URL of a database."""
        return f"postgresql://trinity@127.0.0.1:{port or self.port}/{name}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        words = ["-D", str(self._folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._folder)]
        words += ["-c", "fsync=off"]  # what a crash of the server can lose, not what one of the machine can
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), *words], stdout=log, stderr=log, cwd="/", user=self._user
            )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                with self._engine("postgres").connect():
                    return
            except OperationalError:
                assert self._process.poll() is None and time.monotonic() < deadline, self.log()
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End the server; at once and without a word (SIGQUIT), or with its connections (SIGINT)."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End the server and start it again."""
        self.stop(how)
        self.start()

    def close(self) -> None:
        """End the server, and remove what it has."""
        with contextlib.suppress(OSError):
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self) -> str:
        """Return the last words of the server."""
        return (self._folder / "log").read_text(errors="replace")[-3000:]

    def _engine(self, name: str) -> Engine:
        url = self.url(name).replace("postgresql:", "postgresql+psycopg:")
        return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *words], capture_output=True, text=True, cwd="/", user=self._user, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@functools.cache
def shared() -> Server:
    """Return the server of this process, which ends with it."""
    server = Server()
    atexit.register(server.close)
    return server


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
