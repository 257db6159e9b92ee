"""Processes of vLLM's engines in tests: real ones, forked from a process that has imported what they would.

vLLM starts its processes by `multiprocessing`, as "spawn", and each imports torch, transformers and vLLM for seven
seconds. Within `forked_processes` they are forks of one server instead, with the environment that a spawned process
would have at this time. Engines of runs, and of programs that tests start, have ordinary processes.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import context, forkserver, popen_forkserver, spawn, util
from typing import Any

from tests.prepared import CAN_FORK
from trinity.engine.vllm.settings import process_environment
from trinity.utils.environment import environment

MODULES = [
    "tests.engine.vllm.forked",
    "trinity.engine.vllm.engine",
    "trinity.engine.vllm.worker",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.llama",
]


class _Server(forkserver.ForkServer):
    """The server of this process, or that of which this process is a fork."""

    def ensure_running(self) -> None:
        told: Any = forkserver._forkserver
        if told.get_inherited_fds() is None:
            super().ensure_running()
        else:
            vars(self).update(vars(told))


_server: Any = _Server()
_server.set_forkserver_preload(MODULES)


class _Popen(popen_forkserver.Popen):
    """`multiprocessing`'s own but for the server, of which it knows one a process."""

    def _launch(self, process_obj: Any) -> None:
        told = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            context.reduction.dump(spawn.get_preparation_data(process_obj._name), told)
            context.reduction.dump(process_obj, told)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, writer = _server.connect_to_new_process(self._fds)
        self.finalizer = util.Finalize(self, util.close_fds, (os.dup(writer), self.sentinel))
        with open(writer, "wb") as file:
            file.write(told.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class _Process(context.ForkServerProcess):
    """A process with the environment of this one when it starts."""

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)

    def __reduce__(self) -> tuple[Any, ...]:
        return _begun, (dict(os.environ), os.getpid()), self.__dict__


def _begun(variables: dict[str, str], parent: int) -> _Process:
    """Return an empty process in a fork that has become what `spawn` would have started; the rest is read after it.

    Its parent is the server, which ends after `parent`: who asks is told `parent`, as in a process of `spawn`.
    """
    os.getppid = lambda: parent
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    tempfile.tempdir = None  # it is read from the environment once
    context._concrete_contexts["spawn"] = _Context()
    return _Process.__new__(_Process)


class _Context(context.ForkServerContext):
    Process: Any = _Process


@contextlib.contextmanager
def forked_processes() -> Iterator[None]:
    """Let the processes that `multiprocessing` spawns be forks of the server, where processes can be forked."""
    if not CAN_FORK:
        yield
        return
    known: Any = context._concrete_contexts
    with environment(process_environment(is_cpu=True)):
        _server.ensure_running()
    spawned, known["spawn"] = known["spawn"], _Context()
    try:
        yield
    finally:
        known["spawn"] = spawned
