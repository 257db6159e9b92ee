"""The process that `tests.prepared` starts: it imports what runs import, and each run is a fork of it."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from typing import Any

from tests.prepared import SIGNALS
from trinity.common.config.config import Config
from trinity.common.config.schema_index import build, facts_below
from trinity.launch.process import prepare_process
from trinity.utils import failpoints

# What runs import when they get there, and the models of most tests.
MODULES = (
    "PIL.PngImagePlugin",
    "httpx",
    "pydantic.type_adapter",
    "rich._emoji_codes",
    "sqlalchemy.dialects.sqlite",
    "trinity.algorithm.advantage_fn.grpo",
    "trinity.algorithm.kl_fn.estimators",
    "trinity.algorithm.policy_loss_fn.ppo",
    "trinity.algorithm.policy_loss_fn.sft",
    "trinity.algorithm.sample_strategy.sample_strategy",
    "trinity.buffer.buffer",
    "trinity.cli.app",
    "trinity.cli.evaluations",
    "trinity.cli.live",
    "trinity.cli.progress",
    "trinity.common.rewards.accuracy_reward",
    "trinity.common.rewards.verl",
    "trinity.engine.create",
    "trinity.engine.torch.engine",
    "trinity.explorer.explorer",
    "trinity.launch.bench",
    "trinity.launch.ending",
    "trinity.launch.explorer_side",
    "trinity.launch.run",
    "trinity.launch.stage",
    "trinity.launch.trainer_side",
    "trinity.launch.validation",
    "trinity.monitor.mlflow",
    "trinity.monitor.tensorboard",
    "trinity.preflight.machine",
    "trinity.preflight.models",
    "trinity.summary.page",
    "trinity.summary.picture",
    "trinity.synchronizer.transport",
    "trinity.trainer.trainer",
    "trinity.trainer.verl.worker",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llama.tokenization_llama",
    "transformers.models.qwen2.modeling_qwen2",
)


def prepare() -> dict[str, str]:
    """Import what runs import, and let the library of products read its settings; return the variables that this sets.

    Raises:
        RuntimeError: that has started threads, which a fork would not have.
    """
    before = dict(os.environ)
    for name in MODULES:
        importlib.import_module(name)
    build(Config)  # else each fork makes the schemas of its configuration
    facts_below(())  # and looks up what is said of every key
    added = {name: value for name, value in os.environ.items() if name not in before}
    from trinity.launch.facts import compute_as_the_command

    prepare_process("", deterministic=True)
    compute_as_the_command()  # what it asks a fresh process is kept, and each deterministic fork is held against it
    assert "ray" not in sys.modules, "it reads the environment of its process when it is imported"
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        raise RuntimeError(f"the imports have started {len(threads) - 1} threads, which a fork would not have")
    gc.collect()
    gc.freeze()  # the collector of a fork does not touch, and so copy, what they share
    return added


class Forks:
    """The forks that live, or that have ended and wait until their status is taken."""

    def __init__(self, orders: socket.socket) -> None:
        self.orders = orders
        self.selector = selectors.DefaultSelector()
        self.selector.register(orders, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any] | None:
        """Fork as told; return what to be in each fork, and None in the server when nobody orders any more."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is not self.orders:
                    self._look_at(key)
                elif not (size := self.orders.recv(8)):
                    return None
                elif (order := self._fork(int.from_bytes(size, "big"))) is not None:
                    return order

    def _fork(self, size: int) -> dict[str, Any] | None:
        _, (output, status), *_ = socket.recv_fds(self.orders, 16, 2)
        text = b""
        while len(text) < size:
            text += self.orders.recv(65536)
        told = socket.socket(fileno=status)
        if pid := os.fork():
            os.close(output)
            told.send(pid.to_bytes(4, "big"))
            self.selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))
            return None
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        told.close()
        self._forget()
        return json.loads(text)

    def _look_at(self, key: selectors.SelectorKey) -> None:
        """Tell that a fork has ended; once that is taken, let go of its process id."""
        self.selector.unregister(key.fileobj)
        if isinstance(key.fileobj, int):
            pid, told = key.data
            os.close(key.fileobj)
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                told.send(status.to_bytes(4, "big", signed=True))
            self.selector.register(told, selectors.EVENT_READ, pid)
        else:
            key.fileobj.close()
            os.waitpid(key.data, 0)

    def _forget(self) -> None:
        """Close in a fork what is the server's."""
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
                key.data[1].close()
            else:
                key.fileobj.close()
        self.selector.close()


class Last:
    """What an interpreter drops last, when Python itself has nothing more to say: from then on nothing is printed.

    What the server has imported stays frozen in a fork, where each collection would walk through it and copy it. The
    end of the interpreter does not free all of that, and a library of triton would complain.
    """

    def __init__(self) -> None:
        self._close = os.close

    def __del__(self) -> None:
        self._close(2)


def become(order: dict[str, Any], added: dict[str, str]) -> None:
    """Be the process that Python has started with the command and the environment of `order`; imports have `added`."""
    import numpy
    import torch

    os.chdir(order["cwd"])
    variables = added | order["environment"]
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    for number in SIGNALS:
        if number in order["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.path[0] = os.getcwd()
    sys.orig_argv = order["command"]
    sys.argv = order["command"][2:]
    numpy.random.seed()  # the global generators, drawn again as at its import; Python does so by itself
    torch.default_generator.seed()
    failpoints.configure(os.environ["TRINITY_FAILPOINTS"])


def main() -> None:
    """Serve the socket whose descriptor is the only argument; every fork leaves as `python -m trinity`."""
    added = prepare()
    builtins.last = Last()  # type: ignore[attr-defined]
    order = Forks(socket.socket(fileno=int(sys.argv[1]))).serve()
    if order is not None:
        become(order, added)
        runpy.run_module("trinity", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
