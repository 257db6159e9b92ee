"""The process that forks the workers of Ray in the clusters of tests, and what asks for it; see `ray_workers`."""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.e2e import ray_workers

ROOT = Path(__file__).parents[2]
SERVER = "from tests.e2e.ray_worker_server import serve; serve()"


def node_args(**node: Any) -> dict[str, Any]:
    """Return the arguments of a node of a cluster whose workers are forked."""
    os.environ[ray_workers.PLACE] = _place()
    return node | {"worker_path": ray_workers.__file__}


@functools.cache
def _place() -> str:
    """Start the server of this process; return where it listens."""
    folder = tempfile.mkdtemp(prefix="w", dir="/tmp")  # short, because a socket lies in it
    place = f"{folder}/forks"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=os.environ | {"PYTHONPATH": path, ray_workers.PLACE: place},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    def end() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    assert process.stdout is not None and process.stdout.read(1) == b"1", "the server of Ray's workers did not start"
    return place


def serve() -> None:
    """Fork a worker for each who asks, until the process that started this one is gone."""
    from trinity.launch.explorer_side import ExplorerSide
    from trinity.launch.trainer_side import TrainerSide

    ExplorerSide.load()
    TrainerSide.load()
    assert "ray" not in sys.modules, "it reads the environment of its worker when it is imported"
    assert len(os.listdir("/proc/self/task")) == 1, "a process of several threads must not be forked"
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as selector:
        listener.bind(os.environ[ray_workers.PLACE])
        listener.listen(256)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        os.write(1, b"1")
        while all(key.fileobj is listener for key, _ in selector.select()):
            caller, _ = listener.accept()
            order, files, _, _ = socket.recv_fds(caller, ray_workers.MOST_BYTES, 3)
            if os.fork() == 0:
                break
            for file in (caller.detach(), *files):
                os.close(file)
        else:
            return
    become(json.loads(order), files)


def become(order: Any, files: list[int]) -> None:
    """Continue as the worker that was asked for; the connection stays open until its end."""
    arguments, environment, folder = order
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    spec = find_spec("ray")
    assert spec is not None and spec.origin is not None
    program = str(Path(spec.origin).with_name("_private") / "workers" / "default_worker.py")
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
