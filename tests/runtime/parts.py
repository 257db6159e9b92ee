"""Components for the tests of the runtimes; they are found by their import path in other processes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from typing import Any

from trinity.common.errors import CheckpointError


def set_up(name: str, *, word: str) -> None:
    os.environ["TRINITY_TEST_SETUP"] = f"{word} {name}"


class PlainlyOwnError(Exception):
    """An error with two arguments, which the usual way of copying an exception loses."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} number {number}")
        self.number = number


class Part:
    """Does what tests ask of it."""

    def __init__(self, start: int = 0, *, rank: int = 0, die: str = "") -> None:
        self.value = start
        self.rank = rank
        self._gate = asyncio.Event()
        self.cancelled = 0
        if die == "error":
            raise CheckpointError("nothing to load", code="E7001")
        if die:
            self.die(die)

    def add(self, step: int) -> int:
        """Return the sum; two calls at a time would lose one."""
        before = self.value
        time.sleep(0.01)
        self.value = before + step
        return self.value

    def facts(self) -> tuple[int, str, int]:
        return os.getpid(), threading.current_thread().name, self.rank

    def collector(self) -> tuple[int, int, int]:
        return gc.get_threshold()

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    async def wait(self, seconds: float = 60.0) -> str:
        try:
            await asyncio.wait_for(self._gate.wait(), seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "opened"

    async def open(self) -> None:
        self._gate.set()

    async def count_cancelled(self) -> int:
        return self.cancelled

    def fail(self, how: str) -> None:
        if how == "trinity":
            raise CheckpointError("step 3 is torn", code="E7002")
        if how == "own":
            raise PlainlyOwnError("gadget", 7)
        if how == "exit":
            sys.exit(3)
        raise LookupError("no such thing")

    async def fail_soon(self) -> None:
        await asyncio.sleep(0)
        raise CheckpointError("later", code="E7003")

    def die(self, how: str) -> None:
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        time.sleep(0.2)
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def echo(self, value: Any) -> Any:
        return value

    def unreadable(self) -> Any:
        return lambda: None

    def put(self, objects: Any) -> Any:
        """Return a reference to three tensors, two of them tied."""
        import torch

        shared = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        half = torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16)
        return objects.put({"a": shared, "b": half, "c": shared, "none": torch.empty(0, 4)})

    def sum_of(self, ref: Any) -> dict[str, float]:
        return {name: float(tensor.float().sum()) for name, tensor in ref.load().items()}

    def start_sleeper(self) -> int:
        """Return the id of a process of its own that sleeps."""
        import subprocess

        return subprocess.Popen(["sleep", "300"]).pid
