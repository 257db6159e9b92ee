"""A child process: it holds one component for its parent.

It reads messages of its parent from a socket, calls the component, and writes results and log records back. It ends
when the parent says so, when the parent ends, or when nothing reads the socket any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from trinity.runtime.collector import collect_seldom
from trinity.runtime.event_loop import run_event_loop
from trinity.runtime.failure import Failure
from trinity.runtime.host import ComponentHost
from trinity.runtime.messages import from_bytes, to_bytes
from trinity.runtime.process_exit import die_with, leave
from trinity.utils.log import ROOT, RedactingFormatter
from trinity.utils.streams import steady_output

EXIT_GRACE_S = 5.0


class _RecordSender(logging.Handler):
    """Sends log records to the parent, which writes them where its own go."""

    def __init__(self, child: _Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record."""
        self._child.send("log", 0, (record.levelno, record.name, self.format(record)))


class _Child:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._ended: asyncio.Event | None = None
        self._host = ComponentHost("component")
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer = threading.Thread(target=self._write, name="to-parent", daemon=True)
        self._writer.start()

    def send(self, kind: str, number: int, content: Any) -> None:
        self._out.put(to_bytes((kind, number, to_bytes(content))))

    def _write(self) -> None:
        while (data := self._out.get()) is not None:
            with contextlib.suppress(OSError):
                self._connection.send_bytes(data)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._read, name="from-parent", daemon=True).start()
        await self._ended.wait()
        self._host.cancel_all()
        self._host.close()

    def _read(self) -> None:
        while True:
            try:
                kind, number, content = from_bytes(self._connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(1)  # the parent is gone, and nobody is left to tell
            self._loop.call_soon_threadsafe(self._receive, kind, number, content)

    def _receive(self, kind: str, number: int, content: bytes) -> None:
        if kind == "cancel":
            self._host.cancel(number)
        elif kind == "exit":
            assert self._ended is not None, "messages are read while the child runs"
            self._ended.set()
        else:
            task = self._loop.create_task(self._answer(kind, number, content))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, kind: str, number: int, content: bytes) -> None:
        try:
            value = await self._perform(kind, number, content)
            self.send("value", number, value)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the caller in the parent handles it
            self.send("error", number, Failure.of(error, self._host.name))

    async def _perform(self, kind: str, number: int, content: bytes) -> Any:
        if kind == "setup":
            name, setup, level = from_bytes(content)
            self._host.name = name
            _log_to(self, level)
            if (setup := from_bytes(setup)) is not None:
                await asyncio.to_thread(setup.run, name)
            return os.getpid()
        if kind == "construct":
            self._host = ComponentHost(self._host.name)
            await self._host.construct(*from_bytes(content))
            return None
        method, args, kwargs = from_bytes(content)
        return await self._host.run(number, method, args, kwargs)

    def drain(self) -> None:
        """Write what is queued; at most `EXIT_GRACE_S` seconds."""
        self._out.put(None)
        self._writer.join(EXIT_GRACE_S)


def _log_to(child: _Child, level: int) -> None:
    root = logging.getLogger(ROOT)
    root.propagate = False
    root.setLevel(level)
    handler = _RecordSender(child)
    handler.setFormatter(RedactingFormatter("%(message)s"))
    root.addHandler(handler)


def main() -> None:
    """Host one component until the parent releases it.

    The arguments are the descriptor of the socket and the pid of the parent.
    """
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_seldom()
    steady_output()
    child = _Child(Connection(descriptor))
    run_event_loop(child.run())
    child.drain()
    leave(0)
