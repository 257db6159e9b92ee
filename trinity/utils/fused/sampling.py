"""The draw of a decoding step as one kernel.

Dimension key: B = rows, V = vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from trinity.utils.fused.machine import exponential, kernel, pointer

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@njit(inline="always")
def _uniform(key: int, position: int) -> float:
    state = np.uint64(key) + np.uint64(position + 1) * _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    state = state ^ (state >> np.uint64(31))
    return (float(state >> np.uint64(12)) + 0.5) * 2.0**-52


@njit(inline="always")
def _chosen(weights: Any, count: int, target: float) -> int:
    """Return the first token up to which weights add to more than `target`."""
    total, last = 0.0, 0
    for i in range(count):
        total += np.float64(weights[i])
        if weights[i] > 0:
            last = i
            if total > target:
                return last
    return last


@kernel
def draw(
    logits: int,
    temperature: int,
    noise: tuple[int, int],
    hidden: tuple[int, int, int],
    found: tuple[int, int],
    sizes: tuple[int, int, int],
    buffer: int,
) -> None:
    """Draw a token for each row; write it and its logprob.

    See `trinity.engine.sampler`: `uniforms` for the noise, `sample` for the draw and what the logprob is of.

    Args:
        logits: [B, V], float32.
        temperature: [B], float32.
        noise: keys and token positions [B], int64.
        hidden: whether a token is never drawn [V], or not while a row is short of its minimum [V] (bytes), and whether
            it is short [B] (bytes).
        found: tokens [B], int64, and logprobs [B], float32.
        sizes: B, V and how many of V may be drawn.
        buffer: [V], float32.
    """
    rows, size, drawn = sizes
    x, t = pointer(logits, np.float32(0)), pointer(temperature, np.float32(0))
    keys, positions = pointer(noise[0], np.int64(0)), pointer(noise[1], np.int64(0))
    never, not_yet, is_short = (
        pointer(hidden[0], np.uint8(0)),
        pointer(hidden[1], np.uint8(0)),
        pointer(hidden[2], np.uint8(0)),
    )
    tokens, logprobs = pointer(found[0], np.int64(0)), pointer(found[1], np.float32(0))
    weights = pointer(buffer, np.float32(0))
    for row in range(rows):
        at, factor = row * size, np.float32(1) / t[row]
        top, whole = x[at] * factor, np.float32(0)
        for i in range(size):
            top = max(top, x[at + i] * factor)
        for i in range(size):
            weight = exponential(x[at + i] * factor - top)
            weights[i] = weight
            whole += weight + x[at + i] * np.float32(0)  # what is not finite must not be drawn from
        short = np.uint8(is_short[row])
        kept = 0.0
        for i in range(drawn):
            if never[i] | (short & not_yet[i]):
                weights[i] = np.float32(0)
            kept += np.float64(weights[i])
        token = _chosen(weights, drawn, _uniform(keys[row], positions[row]) * kept)
        tokens[row] = token
        logprobs[row] = x[at + token] * factor - top - np.float32(math.log(whole))
