"""Sizes of models, what a step of them takes at least, and what the device gives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trinity.utils.device import synchronize

PUBLISHED_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0}
"""Dense bfloat16 products of a card, from its data sheet, by a part of its name."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3-like model with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int

    @property
    def attention_size(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of all layers."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    @property
    def parameters(self) -> int:
        """Parameters that one token is multiplied with, the output layer included."""
        return self.layer_parameters + self.vocabulary * self.hidden

    @property
    def memory_bytes(self) -> int:
        """Memory of engine and trainer together, about: weights, moments and gradients, copies, and 16k tokens."""
        return self.parameters * 24 + 16_384 * self.layers * self.hidden * 4 + 6 * 2**30

    def training_flops(self, tokens: int) -> float:
        """Return the arithmetic of forward and backward over one sequence: 6 a parameter and token, and attention.

        The causal half of the scores counts. What is computed twice to save memory does not.
        """
        return 6.0 * self.parameters * tokens + 6.0 * self.layers * self.attention_size * tokens**2

    def cache_bytes(self, element_size: int) -> int:
        """Return keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * element_size


SHAPES = {
    "0.5B": Shape(896, 24, 14, 2, 64, 4864, 151_936),
    "1.7B": Shape(2048, 28, 16, 8, 128, 6144, 151_936),
    "4B": Shape(2560, 36, 32, 8, 128, 9728, 151_936),
    "tiny": Shape(64, 2, 4, 2, 16, 128, 1024),
}


def seconds_of(work_: Callable[[], Any], device: torch.device, *, repeats: int = 5) -> float:
    """Return the median seconds of `work_` after one call that does not count."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        started = time.perf_counter()
        work_()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def bandwidth(device: torch.device, *, size_bytes: int) -> float:
    """Return the bytes a second that a copy reads and writes."""
    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size_bytes / seconds_of(lambda: target.copy_(source), device)


def product_rate(device: torch.device, *, size: int, dtype: torch.dtype) -> float:
    """Return the operations a second of a square product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: torch.mm(a, b), device)


def published_flops(device: torch.device, given: float | None) -> float | None:
    """Return the peak of the data sheet in operations a second, None if it is not known."""
    if given is not None:
        return given * 1e12
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((value * 1e12 for part, value in PUBLISHED_TFLOPS.items() if part in name), None)
