"""A running vLLM: its event loop, and its requests in progress."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from transformers import PreTrainedTokenizerBase

from trinity.engine.vllm.requests import RequestProgress
from trinity.engine.vllm.weights import ModelFacts
from trinity.runtime.scratch import Scratch

_GONE_S = 5.0  # time for processes that were told to end
_POLL_S = 0.01

start_lock = threading.Lock()
"""Held while the environment variables of this process are those for vLLM's processes."""


@dataclass
class VLLMTotals:
    """Totals of the engine; `busy_s` are seconds with a request in progress."""

    generated_tokens: int = 0
    prompt_tokens: int = 0
    samples: int = 0
    busy_s: float = 0.0
    busy_since: float = 0.0

    def table(self, *, is_busy: bool, num_slots: int) -> dict[str, float]:
        """Return totals and tokens per second under the torch engine's names."""
        busy_s = self.busy_s + (time.perf_counter() - self.busy_since if is_busy else 0.0)
        return {
            "generated_tokens": float(self.generated_tokens),
            "prompt_tokens": float(self.prompt_tokens),
            "samples": float(self.samples),
            "busy_s": busy_s,
            "tokens_per_second": self.generated_tokens / busy_s if busy_s else 0.0,
            "num_slots": float(num_slots),
        }


@dataclass
class Started:
    """A running AsyncLLM with its event loop.

        request: take a slot -> wait for the gate -> active -> done; `idle` is set when none is active
        update:  update_lock -> close the gate -> wait for `idle` -> load -> open the gate
                 in flight: pause the active requests instead of waiting, and resume them after loading

    Attributes:
        llm: vLLM's engine.
        scratch: folder of the files of its processes.
        loop: event loop, in its own thread.
        tokenizer: tokenizer of the model.
        facts: names, shapes and sizes of the model.
        dtype: data type of the engine's weights.
        wire_dtype: data type in which weights are sent to it.
        stop_ids: token ids that end a response.
        slots: one per sample that vLLM holds at once; other samples wait here, and do not delay an update.
        gate: open unless an update waits or runs.
        idle: set while no request is active.
        update_lock: admits one update at a time.
        active: the active requests by name.
        tasks: tasks that wait for them, or update the weights.
        processes: vLLM's processes that compute.
        watch: task that probes vLLM's processes; None before it serves.
    """

    llm: Any
    scratch: Scratch
    loop: asyncio.AbstractEventLoop
    tokenizer: PreTrainedTokenizerBase
    facts: ModelFacts
    dtype: torch.dtype
    wire_dtype: torch.dtype
    stop_ids: list[int]
    slots: asyncio.Semaphore
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    update_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    active: dict[str, RequestProgress] = field(default_factory=dict)
    tasks: set[asyncio.Task] = field(default_factory=set)
    processes: list[psutil.Process] = field(default_factory=list)
    watch: asyncio.Task | None = None

    def __post_init__(self) -> None:
        self.gate.set()
        self.idle.set()

    def own(self, workers: Iterable[Mapping[str, Any]]) -> None:
        """Record the workers' processes and claim their shared memory for cleanup."""
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                self.processes.append(psutil.Process(worker["pid"]))
            if worker["shared"]:
                self.scratch.claim(worker["shared"])

    def begin(self, name: str, progress: RequestProgress, counts: VLLMTotals) -> None:
        """Record that the running task has requested a sample."""
        self.active[name] = progress
        self.tasks.add(running_task())
        if self.idle.is_set():
            counts.busy_since = time.perf_counter()
        self.idle.clear()

    def end(self, name: str, counts: VLLMTotals) -> None:
        """Record that the running task's sample is finished or has failed."""
        self.tasks.discard(running_task())
        del self.active[name]
        if not self.active:
            counts.busy_s += time.perf_counter() - counts.busy_since
            self.idle.set()

    def waiting(self) -> str:
        """Describe what waits for vLLM."""
        if self.update_lock.locked():
            return f"while it takes new weights with {len(self.active)} samples under way"
        return f"with {len(self.active)} samples under way" if self.active else "with nothing under way"

    def stop(self, grace_s: float) -> None:
        """End vLLM's processes, by force after `grace_s` seconds."""
        llm, self.llm = self.llm, None
        if self.watch is not None:
            self.loop.call_soon_threadsafe(self.watch.cancel)
        if (handler := llm.output_handler) is not None:
            # It would report the end of the processes as a failure, and it references the engine while it runs.
            self.loop.call_soon_threadsafe(handler.cancel)
            end = time.monotonic() + _GONE_S
            while not handler.done() and time.monotonic() < end:
                time.sleep(_POLL_S)
            del handler
        llm.shutdown(grace_s)
        llm.shutdown = _is_ended  # its finalizer calls it again, perhaps after the interpreter has dropped its modules
        del llm
        gc.collect()  # vLLM's objects form cycles, and would shut down a second time when the interpreter exits
        psutil.wait_procs(self.processes, timeout=_GONE_S)
        self.scratch.remove()

    def cancel_others(self) -> None:
        """Cancel all tasks in progress except the running one."""
        for task in self.tasks - {asyncio.current_task()}:
            task.cancel()


def _is_ended() -> None:
    """Do nothing: the engine has already ended."""


def running_task() -> asyncio.Task:
    """Return the running task."""
    task = asyncio.current_task()
    assert task is not None, "runs in a task"
    return task
