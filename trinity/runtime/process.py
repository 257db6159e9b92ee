"""Components in child processes of this one, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import IO, Any

from trinity.common.errors import AlreadyRunningError, DeadlineError
from trinity.runtime.base import (
    CLOSE_GRACE_S,
    ActorDiedError,
    Handle,
    Order,
    Resources,
    Setup,
    public_name,
)
from trinity.runtime.last_words import KEPT_LINES, told_by
from trinity.runtime.messages import from_bytes, to_bytes
from trinity.runtime.objects import MemoryObjects
from trinity.runtime.worker_thread import WorkerThread
from trinity.utils.cores import available_cores
from trinity.utils.deadline import within
from trinity.utils.log import ROOT, get_logger

KILL_WAIT_S = 10.0
DRAIN_S = 2.0
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from trinity.runtime.child import main; main()"

_spawner = WorkerThread("spawner")
"""Starts every child in one thread: when the thread that started a child ends, the kernel acts as if the parent had."""


class ProcessHandle:
    """Handle of a component in a child process; see `base.Handle`.

    Args:
        name: of the component.
        process: the child.
        connection: to it.
    """

    def __init__(self, name: str, process: subprocess.Popen[str], connection: Connection) -> None:
        self.name = name
        self.pid = process.pid
        self.node = "localhost"
        self._process = process
        self._connection = connection
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        self._mourners: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[str]]] = []
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._errors: deque[str] = deque(maxlen=KEPT_LINES)
        self._is_released = False
        self.cause: str | None = None
        threads = [self._thread(self._read), *(self._thread(self._forward, stream) for stream in self._streams())]
        self._thread(self._write)
        self._thread(self._watch, threads)

    def _thread(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, name=f"{self.name}-{work.__name__}", daemon=True)
        thread.start()
        return thread

    def _streams(self) -> list[IO[str]]:
        return [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        public_name(name, self.__dict__.get("name", "component"))

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self.request("call", (name, args, kwargs))

        return call

    async def request(self, kind: str, content: Any) -> Any:
        """Return the child's answer to a message.

        Raises:
            ActorDiedError: the child is gone.
            Exception: what the child answers.
        """
        data = to_bytes(content)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self.cause is not None:
                raise self._death()
            number = next(self._numbers)
            self._waiting[number] = loop, future
        self._out.put(to_bytes((kind, number, data)))
        try:
            return await future
        except asyncio.CancelledError:
            self._out.put(to_bytes(("cancel", number, b"")))
            raise
        finally:
            self._waiting.pop(number, None)

    async def kill(self) -> None:
        """End the child, and what it started in its session, with SIGKILL."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            await within(self.wait_dead(), KILL_WAIT_S)
        except TimeoutError as error:
            raise DeadlineError(
                f"{self.name} (process {self.pid}) is still there {KILL_WAIT_S:g} s after SIGKILL: the kernel does not "
                "end it, as it does while a device or a network file does not answer",
                code="E5705",
            ) from error

    async def wait_dead(self) -> str:
        """Return the cause of death, when the child is gone."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.cause is not None:
                return self.cause
            future: asyncio.Future[str] = loop.create_future()
            self._mourners.append((loop, future))
        return await future

    def let_go(self) -> None:
        """Ask the child to leave; wait for nothing."""
        self._is_released = True
        self._out.put(to_bytes(("exit", 0, b"")))

    def _death(self) -> ActorDiedError:
        return ActorDiedError(f"{self.name} (process {self.pid}) is gone: {self.cause}")

    # ------------------------------------------------------------------- threads
    def _write(self) -> None:
        while (data := self._out.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:
                return  # the child is gone; the watch says so to everybody who waits

    def _read(self) -> None:
        while True:
            try:
                kind, number, content = from_bytes(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            if kind == "log":
                level, logger, text = from_bytes(content)
                logging.getLogger(logger).log(level, "%s: %s", self.name, text)
                continue
            waiting = self._waiting.get(number)
            if waiting is None:
                continue
            value, error = _read_answer(kind, content)
            _deliver(*waiting, value, error)

    def _forward(self, stream: IO[str]) -> None:
        logger = get_logger("process")
        is_error = stream is self._process.stderr
        with stream:
            for line in stream:
                text = line.rstrip()
                if is_error:
                    self._errors.append(text)
                logger.info("%s: %s", self.name, text)

    def _watch(self, threads: list[threading.Thread]) -> None:
        status = self._process.wait()
        end = time.monotonic() + DRAIN_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what the child started and left behind
        cause = _cause(status)
        if not self._is_released:
            cause += told_by(self._errors)
        with self._lock:
            self.cause = cause
            waiting, mourners = list(self._waiting.values()), self._mourners
        for loop, future in waiting:
            _deliver(loop, future, None, self._death())
        for loop, mourner in mourners:
            _deliver(loop, mourner, cause, None)
        self._out.put(None)
        self._connection.close()


def _read_answer(kind: str, content: bytes) -> tuple[Any, BaseException | None]:
    try:
        value = from_bytes(content)
    except Exception as error:  # noqa: BLE001 - a value whose class is not importable here is the caller's error
        return None, error
    return (value, None) if kind == "value" else (None, value.error())


def _deliver(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def give() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    with contextlib.suppress(RuntimeError):  # the loop of the caller was closed: nobody waits
        loop.call_soon_threadsafe(give)


def _cause(status: int) -> str:
    if status >= 0:
        return f"it ended with exit code {status}"
    return f"it was killed by {signal.Signals(-status).name}"


def _spawn(environment: dict[str, str]) -> tuple[subprocess.Popen[str], Connection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid()), *sys.path],
            env=environment,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        return process, Connection(ours.detach())


class ProcessRuntime:
    """Places each component in a child process; see `base.Runtime`.

    Args:
        setup: what every process does before it makes its component.
        divides_gpus: a child that asks for no GPU sees none.
    """

    is_local = False

    def __init__(self, setup: Setup | None = None, *, divides_gpus: bool = False) -> None:
        self.objects = MemoryObjects()
        self._setup = setup
        self._divides_gpus = divides_gpus
        self._handles: dict[str, ProcessHandle] = {}

    @property
    def core_count(self) -> int:
        """CPU cores of this machine that the process may use."""
        return available_cores()

    async def start(self, cls: Callable[..., Any], *args: Any, **how: Any) -> Handle:
        """Return a handle of `cls(*args, **kwargs)` in a child process."""
        return await self._start(Order.of(cls, args, how))

    async def group(self, cls: Callable[..., Any], count: int, *args: Any, **how: Any) -> list[Handle]:
        """Return handles of `count` components in child processes.

        Either all are started or none.
        """
        return await start_together([self._start(order) for order in Order.of(cls, args, how).ranks(count)])

    async def reserve(self, count: int, *, resources: Resources, **_how: Any) -> list[Resources]:
        """Return resources of `count` components; this reserves nothing."""
        return [resources] * count

    async def _start(self, order: Order) -> Handle:
        holder = self._handles.get(order.name)
        if holder is not None and holder.cause is None:
            raise AlreadyRunningError(f"a component named {order.name} lives in process {holder.pid}", code="E8010")
        own = order.resources.environment(divides_gpus=self._divides_gpus)
        handle = ProcessHandle(order.name, *await _spawner.call(_spawn, {**os.environ, **own}))
        self._handles[order.name] = handle
        try:
            await within(self._construct(handle, order), order.timeout_s)
        except TimeoutError as error:
            await handle.kill()
            raise DeadlineError(
                f"{order.name} did not start within {order.timeout_s:g} s; its lines in the log say how far it came",
                code="E5702",
            ) from error
        except BaseException:
            await handle.kill()
            raise
        get_logger("launch").info("%s is process %d", handle.name, handle.pid)
        return handle

    async def _construct(self, handle: ProcessHandle, order: Order) -> None:
        level = logging.getLogger(ROOT).getEffectiveLevel()
        await handle.request("setup", (handle.name, to_bytes(self._setup), level))
        await handle.request("construct", (order.cls, order.args, order.kwargs))

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """Ask every child to end; kill those left after `grace_s` seconds."""
        alive = [handle for handle in self._handles.values() if handle.cause is None]
        for handle in alive:
            handle.let_go()
        if alive:
            await asyncio.wait([asyncio.ensure_future(handle.wait_dead()) for handle in alive], timeout=grace_s)
        late = [handle for handle in alive if handle.cause is None]
        for handle in late:
            get_logger("launch").warning("%s did not leave within %.0f s and is killed", handle.name, grace_s)
        await asyncio.gather(*(handle.kill() for handle in late))
        self._handles.clear()


async def start_together(starts: list[Any]) -> list[Handle]:
    """Return the handles of all `starts`.

    If one fails, kill the others and raise its error.
    """
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.kill() for each in outcomes if not isinstance(each, BaseException)))
        raise
