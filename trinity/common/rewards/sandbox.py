"""Calls with a deadline, in worker processes.

Computer algebra runs there. A worker that exceeds its deadline is killed and replaced.

A call returns `Scored`, `CallTimedOut` or `CallFailed`; it never raises for what the text did and never blocks longer
than its deadline (plus the start of a worker).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trinity
from trinity.utils.log import get_logger

WORKER_MODULE = "trinity.common.rewards.sandbox_worker"
NUM_WORKERS = 2
START_DEADLINE_S = 60.0
FREE_WORKER_DEADLINE_S = 120.0
REAP_DEADLINE_S = 5.0
LONGEST_S = 1e6
"""A deadline that is longer, or infinite, is this one: the kernel counts its milliseconds in 32 bits."""
READ_BYTES = 65536


@dataclass(frozen=True)
class Scored:
    """The call returned `value`."""

    value: Any


@dataclass(frozen=True)
class CallTimedOut:
    """The call did not return within `after_s` seconds; its worker was killed.

    Attributes:
        after_s: the deadline.
        late_s: seconds from the deadline until the worker was sent the signal; equality ignores them.
    """

    after_s: float
    late_s: float = field(default=0.0, compare=False)


def timed_out(after_s: float, *, since: float) -> CallTimedOut:
    """Return the outcome of a call that began at `since` and is killed now."""
    return CallTimedOut(after_s, late_s=max(0.0, time.monotonic() - since - after_s))


@dataclass(frozen=True)
class CallFailed:
    """The call ended without a value, for `reason`."""

    reason: str


CallOutcome = Scored | CallTimedOut | CallFailed


class _Ended(Exception):
    """The worker's pipe closed."""


class _Expired(Exception):
    """The deadline passed."""


def _environment() -> dict[str, str]:
    """Return the worker's environment.

    It has what Python needs to start, and no secrets.
    """
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH", "TMPDIR") if key in os.environ}
    root = str(Path(trinity.__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _wait(fd: int, event: int, deadline: float) -> None:
    """Wait until `fd` can be read or written; `select` knows none above 1023.

    Raises:
        _Expired: not until `deadline`.
    """
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _Expired


class _Worker:
    """One slot: a process that is started when it is first needed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.buffer = b""

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.stop()
        self.buffer = b""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            bufsize=0,
        )
        assert self.process.stdin is not None and self.process.stdout is not None, "both ends are pipes"
        os.set_blocking(self.process.stdin.fileno(), False)
        self._read(time.monotonic() + START_DEADLINE_S)

    def kill(self) -> None:
        """End the process from any thread; its pipes stay open until `stop`."""
        process = self.process
        if process is not None:
            process.kill()

    def stop(self) -> int | None:
        """Kill the process, reap it, close its pipes; return its exit status."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(REAP_DEADLINE_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.returncode

    def ask(self, request: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        self._write(json.dumps(request).encode("ascii") + b"\n", deadline)
        return self._read(deadline)

    def _write(self, data: bytes, deadline: float) -> None:
        assert self.process is not None and self.process.stdin is not None, "started before it is asked"
        fd = self.process.stdin.fileno()
        while data:
            _wait(fd, select.POLLOUT, deadline)
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise _Ended from error

    def _read(self, deadline: float) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None, "started before it is read"
        fd = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            _wait(fd, select.POLLIN, deadline)
            data = os.read(fd, READ_BYTES)
            if not data:
                raise _Ended
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply


class Sandbox:
    """A few worker processes shared by the threads of this process.

    Args:
        num_workers: calls that run at the same time; workers start when they are first needed.
    """

    def __init__(self, *, num_workers: int = NUM_WORKERS) -> None:
        self._workers = [_Worker() for _ in range(num_workers)]
        self._free: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in reversed(self._workers):
            self._free.put(worker)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._is_closed = False
        self._owner_pid = os.getpid()
        self._logger = get_logger("rewards")

    def call(self, operation: str, arguments: Mapping[str, Any], *, deadline_s: float) -> CallOutcome:
        """Return the outcome of `operation` in a worker.

        The call takes at most `deadline_s` seconds after a worker is ready.
        """
        if self._is_closed:
            return CallFailed("the sandbox is closed")
        deadline_s = min(deadline_s, LONGEST_S)
        try:
            worker = self._free.get(timeout=FREE_WORKER_DEADLINE_S)
        except queue.Empty:
            return self._count(CallFailed(f"no worker was free for {FREE_WORKER_DEADLINE_S:g} s"))
        try:
            request = {"operation": operation, "arguments": dict(arguments), "deadline_s": deadline_s}
            return self._count(self._call(worker, request, deadline_s=deadline_s))
        finally:
            self._free.put(worker)

    def _call(self, worker: _Worker, request: dict[str, Any], *, deadline_s: float) -> CallOutcome:
        begin = time.monotonic()
        try:
            if not worker.is_alive:
                self._start(worker)
            begin = time.monotonic()
            reply = worker.ask(request, begin + deadline_s)
        except (_Ended, OSError) as error:
            status = worker.stop()
            if status == -signal.SIGXCPU:
                return timed_out(deadline_s, since=begin)
            return CallFailed(f"the worker ended with status {status} ({type(error).__name__.strip('_')})")
        except _Expired:
            worker.kill()
            outcome = timed_out(deadline_s, since=begin)
            worker.stop()
            return outcome
        if reply.get("is_last"):
            worker.stop()
        return CallFailed(reply["error"]) if "error" in reply else Scored(reply["value"])

    def _start(self, worker: _Worker) -> None:
        with self._lock:
            self._counts["starts"] += 1
        try:
            worker.start()
        except _Expired:
            worker.stop()
            raise OSError(f"worker not ready within {START_DEADLINE_S:g} s") from None

    def _count(self, outcome: CallOutcome) -> CallOutcome:
        with self._lock:
            self._counts["calls"] += 1
            self._counts[type(outcome).__name__] += 1
        if not isinstance(outcome, Scored):
            self._logger.debug("call not scored: %s", outcome)
        return outcome

    def counts(self) -> dict[str, int]:
        """Return the numbers of calls, of their outcomes and of started workers."""
        with self._lock:
            names = ("calls", "Scored", "CallTimedOut", "CallFailed", "starts")
            return {name: self._counts[name] for name in names}

    def worker_pids(self) -> list[int]:
        """Return the process ids of the living workers."""
        processes = [worker.process for worker in self._workers]
        return [process.pid for process in processes if process is not None and process.poll() is None]

    def close(self) -> None:
        """Kill and reap all workers.

        Calls in flight fail at once, later ones too. In a forked child this does nothing.
        """
        if self._owner_pid != os.getpid():
            return
        self._is_closed = True
        for worker in self._workers:
            worker.kill()
        deadline = time.monotonic() + REAP_DEADLINE_S
        for _ in self._workers:
            with contextlib.suppress(queue.Empty):
                self._free.get(timeout=max(0.0, deadline - time.monotonic())).stop()


_shared: tuple[int, Sandbox] | None = None
_shared_lock = threading.Lock()


def shared_sandbox() -> Sandbox:
    """Return the sandbox of this process; its workers end with the process."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared[0] != os.getpid():
            _shared = (os.getpid(), Sandbox())
            atexit.register(_shared[1].close)
        return _shared[1]
