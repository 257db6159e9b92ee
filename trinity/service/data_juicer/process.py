"""The process of a Data-Juicer server that a run starts for itself."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.errors import DeadlineError, EnvironmentProblem
from trinity.runtime.last_words import told_by
from trinity.utils.log import get_logger
from trinity.utils.packages import install_hint

if TYPE_CHECKING:
    from trinity.common.config.sections import DataJuicerServiceConfig

logger = get_logger("service")

PYTHON_ENV_VAR = "TRINITY_DATA_JUICER_PYTHON"
PACKAGE = "py-data-juicer"
SERVER = Path(__file__).with_name("server.py")
STOP_S = 5.0
LOOPBACK = "127.0.0.1,localhost"


def python_of(config: DataJuicerServiceConfig) -> str:
    """Return the Python of the environment that has Data-Juicer."""
    return config.python or os.environ.get(PYTHON_ENV_VAR) or sys.executable


def installed_at(config: DataJuicerServiceConfig) -> Path:
    """Return the folder of Data-Juicer, without importing it.

    Raises:
        EnvironmentProblem: there is no such Python, or this one has no Data-Juicer (E3440).
    """
    python = python_of(config)
    if python == sys.executable:
        spec = find_spec("data_juicer")
        found = (spec.origin or "") if spec is not None else ""
    else:
        code = "import importlib.util as u; s = u.find_spec('data_juicer'); print(s.origin if s else '')"
        try:
            done = subprocess.run([python, "-I", "-c", code], timeout=60, capture_output=True, text=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentProblem(
                f"`service.data_juicer.python`: {python} cannot be run ({error}); write the python of the environment "
                "that has py-data-juicer",
                code="E3440",
            ) from error
        found = done.stdout.strip()
    if not found:
        raise EnvironmentProblem(
            f"Data-Juicer is not installed for {python}; run {install_hint('data')}, or in an environment of its own "
            f"`pip install py-data-juicer aiohttp` and let `service.data_juicer.python` or {PYTHON_ENV_VAR} name its "
            "python",
            code="E3440",
        )
    return Path(found).parent


def installed_version(config: DataJuicerServiceConfig) -> str:
    """Return the version of Data-Juicer that would be started.

    It is not imported.

    Raises:
        EnvironmentProblem: there is none (E3440).
    """
    installed_at(config)
    python = python_of(config)
    if python == sys.executable:
        return metadata.version(PACKAGE)
    code = f"from importlib import metadata; print(metadata.version({PACKAGE!r}))"
    return subprocess.run([python, "-I", "-c", code], timeout=60, capture_output=True, text=True).stdout.strip()


class ServerProcess:
    """A server of this process, which ends with it.

    Args:
        config: of the service.
        log: file of what it writes; None: nothing is kept but its last words.

    Attributes:
        url: where it listens.
        token: that it asks for.

    Raises:
        EnvironmentProblem: there is no Data-Juicer (E3440), or the server ended at once (E3441).
        DeadlineError: it did not start in `service.data_juicer.start_timeout` (E5306).
    """

    def __init__(self, config: DataJuicerServiceConfig, *, log: Path | None = None) -> None:
        installed_at(config)
        self.token = secrets.token_urlsafe(24)
        self._scratch = tempfile.TemporaryDirectory(prefix="trinity-data-juicer-")
        self._log = Path(self._scratch.name) / "stderr" if log is None else log
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._started(config)
        threading.Thread(target=self._end_group, name="data_juicer_group", daemon=True).start()
        try:
            place = self._place(config.start_timeout)
        except BaseException:
            self.close()
            raise
        self.url = f"http://127.0.0.1:{place['port']}"
        logger.info("Data-Juicer %s at %s (pid %d)", place["data_juicer"], self.url, self._process.pid)

    def _started(self, config: DataJuicerServiceConfig) -> subprocess.Popen[bytes]:
        words = [python_of(config), "-I", str(SERVER), "--owned", f"--port={config.port or 0}"]
        words += [f"--allow={name}" for name in config.allowed_operators]
        around = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
        kept = ",".join(filter(None, (around, LOOPBACK)))
        places = {"TMPDIR": self._scratch.name, "HF_DATASETS_CACHE": f"{self._scratch.name}/datasets"}
        with self._log.open("ab") as stream:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=os.environ | places | {"NO_PROXY": kept, "no_proxy": kept},
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `_place` says
            process.stdin.write(self.token.encode() + b"\n")
            process.stdin.flush()
        return process

    def _place(self, limit_s: float) -> dict[str, Any]:
        """Return what the server says of itself."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                raise DeadlineError(
                    f"the Data-Juicer server did not start within {limit_s:g} s; raise "
                    "service.data_juicer.start_timeout if this wait may be longer",
                    code="E5306",
                )
        line = self._process.stdout.readline()
        if line:
            place: dict[str, Any] = json.loads(line)
            return place
        status = self._process.wait(STOP_S)
        raise EnvironmentProblem(
            f"the Data-Juicer server ended with status {status} while it started{self.last_words()}; its log is "
            f"{self._log}",
            code="E3441",
        )

    def _end_group(self) -> None:
        """End what the server has started once it has ended itself.

        Processes that share the rows have its connections, and whoever asks would wait for them.
        """
        self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """Return what it wrote last, as the end of a sentence."""
        with self._log.open(encoding="utf-8", errors="replace") as stream:
            return told_by(stream)

    def status(self, *, wait_s: float = 0.0) -> int | None:
        """Return its exit status; None if it still runs after `wait_s` seconds."""
        try:
            return self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it and what it has started, and remove its temporary files."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, and its group with it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        end = time.monotonic() + STOP_S
        while Path(self._scratch.name).exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):  # a process of the group may still write
                self._scratch.cleanup()
