"""The receiving side of a weight sync, in a module of its own: a process that takes weights imports nothing else."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from trinity.common.weights import Ticket, receive

TIMEOUT_S = 600.0


def take(ticket: Ticket, target: dict[str, Tensor] | None = None) -> float:
    """Get the weights of a ticket, check them, copy them; return the seconds it took."""
    started = time.perf_counter()
    got = receive(ticket, timeout_s=TIMEOUT_S)
    if target is None:
        target = {name: torch.empty_like(tensor) for name, tensor in got.items()}
    for name, tensor in got.items():
        target[name].copy_(tensor)
    return time.perf_counter() - started


def in_other_process(ticket: Ticket) -> float:
    """As `take`, for a process of its own with one thread."""
    torch.set_num_threads(1)
    return take(ticket)
