"""The memory limit of a runner's process: what has left its parent and its session counts, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from trinity.explorer.isolation.memory import OVER, POLL_S

MIB = 1 << 20
RUNNER = """
import os, sys, time
from trinity.explorer.isolation.memory import limit_memory
from trinity.runtime.process_exit import adopt_orphans

file, limit, taken = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
adopt_orphans()
limit_memory(os.getpid(), limit)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        held = bytearray(b"x") * taken
        with open(file + ".part", "w") as out:
            out.write(str(os.getpid()))
        os.replace(file + ".part", file)
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""
PATIENCE_S = 60.0


def runner(file: Path, *, limit: int, taken: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUNNER, str(file), str(limit), str(taken)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def eventually(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "escaped"


def test_a_child_that_left_its_parent_and_its_session_counts(file: Path) -> None:
    process = runner(file, limit=150 * MIB, taken=400 * MIB)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == -signal.SIGKILL and OVER in said, said
    if file.exists():  # else it was killed while it still took memory
        eventually(lambda: is_gone(int(file.read_text())), "it outlives the process that is killed for it")


def test_a_child_that_left_its_session_ends_with_a_runner_that_is_killed(file: Path) -> None:
    process = runner(file, limit=4096 * MIB, taken=MIB)
    eventually(file.exists, "the child is there")
    escaped = int(file.read_text())
    assert psutil.Process(escaped).ppid() == process.pid, "it is adopted"
    time.sleep(4 * POLL_S)  # until it was seen
    assert process.poll() is None and not is_gone(escaped)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    eventually(lambda: is_gone(escaped), "it outlives its runner")
