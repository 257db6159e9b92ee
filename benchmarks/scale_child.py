"""The receiving side of a weight sync, in a module of its own: a process that takes weights imports nothing else."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from trinity.common.weights import Ticket, receive

TIMEOUT_S = 600.0


def clocks() -> tuple[float, float]:
    """Return wall seconds and the CPU seconds of this process."""
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    """Return the wall and CPU seconds since `start`."""
    now = clocks()
    return now[0] - start[0], now[1] - start[1]


def take(ticket: Ticket, target: dict[str, Tensor] | None = None) -> tuple[float, float]:
    """Get the weights of a ticket, check them, copy them; return the wall and CPU seconds it took."""
    started = clocks()
    got = receive(ticket, timeout_s=TIMEOUT_S)
    if target is None:
        target = {name: torch.empty_like(tensor) for name, tensor in got.items()}
    for name, tensor in got.items():
        target[name].copy_(tensor)
    return since(started)


def in_other_process(ticket: Ticket) -> tuple[float, float]:
    """As `take`, for a process of its own with one thread."""
    torch.set_num_threads(1)
    return take(ticket)
