"""Decoding steps over static buffers, which CUDA can record and replay.

A step of a large model is thousands of small kernels, which take longer to launch than to run. A recorded step has
fixed shapes and addresses. So shapes are rounded up to a few sizes, and the inputs are copied into buffers of that
size. Padding rows and widths are computed in idle slots, and dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.engine.torch.fast_decoder import FastDecoder
from trinity.engine.torch.kv_cache import KVCache
from trinity.engine.torch.shared_prompts import Group, rounded

_LEAST_WIDTH = 256
_RECORD_AFTER = 2
_MAX_STEPS = 16


@dataclass
class _Step:
    """A step of one shape: inputs, number of calls, and recorded graph."""

    tokens: Tensor
    positions: Tensor
    groups: list[Group]
    width: int
    seen: list[Group] | None = None
    num_calls: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    logits: Tensor | None = None


class StaticDecoding:
    """`decode` of a fast decoder over static buffers.

    On CUDA, steps of a shape that occurs repeatedly are recorded.

    Args:
        decoder: its weights must keep their addresses.
        num_slots: most rows of a step.
        is_recorded: record steps; None: on CUDA.
    """

    def __init__(self, decoder: FastDecoder, num_slots: int, *, is_recorded: bool | None = None) -> None:
        self.decoder = decoder
        self.num_slots = num_slots
        self.is_recorded = decoder.device.type == "cuda" if is_recorded is None else is_recorded
        self._steps: OrderedDict[Hashable, _Step] = OrderedDict()
        self._pool: Any = None

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: KVCache, width: int
    ) -> Float[Tensor, "B V"]:
        """Return what the decoder returns; the next call overwrites the result."""
        num_rows = len(tokens)
        if not cache.is_fixed:
            filled = min(self.num_slots, rounded(num_rows, least=1, an_octave=2))
            width = min(cache.max_length, rounded(width, least=_LEAST_WIDTH))
            cache.reserve(filled, width)
            tokens, positions = (torch.nn.functional.pad(t, (0, filled - num_rows)) for t in (tokens, positions))
        step = self._step(tokens, positions, cache, width)
        step.tokens.copy_(tokens)
        step.positions.copy_(positions)
        groups = cache.groups(is_static=True)
        if step.seen is not groups:
            step.seen = groups
            for own, new in zip(step.groups, groups, strict=True):
                own.copy_(new)
        # Padding is at the slots' first own position, even if a prompt was shared there before.
        cache.start[num_rows : len(tokens)] = 0
        step.num_calls += 1
        return self._run(step, cache)[:num_rows]

    def _step(self, tokens: Tensor, positions: Tensor, cache: KVCache, width: int) -> _Step:
        groups = cache.groups(is_static=True)
        shared = (t for group in groups for t in group.keys + group.values)
        held = (*cache.keys, *cache.values, cache.start, cache.shift, *shared)
        shapes = tuple((group.keys[0].shape, len(group.rows), group.num_places) for group in groups)
        key = (len(tokens), width, shapes, tuple(tensor.data_ptr() for tensor in held), cache.keys[0].stride())
        step = self._steps.get(key)
        if step is None:
            step = _Step(tokens.clone(), positions.clone(), [group.clone() for group in groups], width)
            self._steps[key] = step
            if len(self._steps) > _MAX_STEPS:
                self._steps.popitem(last=False)
        self._steps.move_to_end(key)
        return step

    def _run(self, step: _Step, cache: KVCache) -> Tensor:
        if step.graph is None:
            if not self.is_recorded or step.num_calls <= _RECORD_AFTER:
                return self._compute(step, cache)
            self._record(step, cache)
        assert step.graph is not None and step.logits is not None, "the step is recorded"
        step.graph.replay()
        return step.logits

    def _compute(self, step: _Step, cache: KVCache) -> Tensor:
        return self.decoder.step(step.tokens, step.positions, cache=cache, width=step.width, groups=step.groups)

    def _record(self, step: _Step, cache: KVCache) -> None:
        """Record the step after earlier calls have created library workspaces."""
        torch.cuda.synchronize(self.decoder.device)
        step.graph = torch.cuda.CUDAGraph()
        # Capture only this thread: a trainer in the same process continues to use the device.
        with torch.cuda.graph(step.graph, pool=self._pool, capture_error_mode="thread_local"):
            step.logits = self._compute(step, cache)
        self._pool = step.graph.pool()
