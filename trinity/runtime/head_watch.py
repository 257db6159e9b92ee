"""Watch over a cluster's head: all processes of a run end with it.

Without its head Ray tells nobody of a death and ends nothing: calls to a process that died wait for ever, and after a
minute its libraries end each process without a word.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil

from trinity.common.errors import ExitCode, TrinityError
from trinity.utils.log import get_logger

logger = get_logger("launch")

KNOCK_EVERY_S = 1.0
KNOCK_EVERY_FROM_ACTORS_S = 3.0  # there may be thousands of them
KNOCK_S = 3.0
GONE_S = 10.0
"""Seconds without an answer after which the head is gone; well below the minute after which Ray ends the process."""
LEAVE_S = 5.0
"""Seconds that the other processes leave to the driver, which says what happened and ends them."""
FEWEST_KNOCKS = 5  # a process that was itself suspended has not knocked


class ClusterLostError(TrinityError):
    """The head of the cluster is gone, so no process can be reached."""

    default_code = "E5706"


class HeadWatch:
    """Probes the head's port in a thread until the `with` block ends.

    Args:
        address: `host:port` of the head.
        on_lost: called once, in that thread, when nobody has answered for `gone_s` seconds.
        gone_s: see there.
        every_s: seconds between two knocks.
    """

    def __init__(
        self, address: str, on_lost: Callable[[], object], *, gone_s: float = GONE_S, every_s: float = KNOCK_EVERY_S
    ) -> None:
        host, _, port = address.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._on_lost = on_lost
        self._gone_s = gone_s
        self._every_s = min(every_s, gone_s / FEWEST_KNOCKS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head-watch", daemon=True)

    def __enter__(self) -> HeadWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        since, knocks = 0.0, 0
        while not self._ended.wait(self._every_s):
            if self._is_there():
                knocks = 0
                continue
            since, knocks = since if knocks else time.monotonic(), knocks + 1
            if knocks >= FEWEST_KNOCKS and time.monotonic() - since >= self._gone_s:
                self._on_lost()
                return

    def _is_there(self) -> bool:
        try:
            socket.create_connection(self._place, timeout=KNOCK_S).close()
        except OSError:
            return False
        return True


def leave_with(address: str, name: str) -> None:
    """End this process soon after the head at `address` is gone.

    The process is the component `name`; the delay is a few seconds.
    """

    def end() -> None:
        logger.error("%s ends: the head of the cluster at %s is gone", name, address)
        os._exit(int(ExitCode.RUNTIME))

    HeadWatch(address, end, gone_s=GONE_S + LEAVE_S, every_s=KNOCK_EVERY_FROM_ACTORS_S).__enter__()


def lost(address: str) -> ClusterLostError:
    """Return the error of a run whose cluster has lost its head."""
    return ClusterLostError(
        f"the head of the Ray cluster at {address} has not answered for {GONE_S:g} s (GONE_S): its gcs_server was "
        "killed or its machine is gone, and with it every way to the run's processes, which end themselves. Start the "
        "cluster again if it was not started by this run; the run continues from its last checkpoint"
    )


@contextlib.contextmanager
def own_sessions(services: Any) -> Iterator[None]:
    """Start each process of Ray's module `services` in its own session.

    A signal to the group of this process, as `timeout`, schedulers and a closed terminal send it, is for this process
    to obey: it shuts the run down cleanly, and needs the cluster for that.
    """
    kept = services.ConsolePopen

    class Apart(kept):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how | {"start_new_session": True})

    services.ConsolePopen = Apart
    try:
        yield
    finally:
        services.ConsolePopen = kept


def below_raylet() -> list[psutil.Process]:
    """Return the Ray processes whose raylet is a child of this process.

    They are those on this machine; a raylet may end before they do.
    """
    raylets = [child for child in psutil.Process().children() if _name(child) == "raylet"]
    return [process for raylet in raylets for process in raylet.children(recursive=True)]


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """End with SIGKILL those of `processes` that are still there."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
