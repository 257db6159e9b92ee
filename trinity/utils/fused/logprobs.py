"""Kernels of log-probabilities over a vocabulary, forward and backward.

    z = x / temperature,  lse = log sum exp(z),  p = exp(z - lse)
    logprob = z[label] - lse,  entropy = -sum of p log p = lse - sum of p z

Dimension key: M = scored tokens, V = vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trinity.utils.fused.machine import exponential, kernel, load, pointer, store

F0 = np.float32(0)


@kernel
def forward(logits: int, labels: int, found: tuple[int, int, int], rows: int, size: int, inverse: float,
            like: Any) -> None:  # fmt: skip
    """Write log-probabilities, entropies and log-sums.

    Args:
        logits: x [M, V].
        labels: [M] in int64.
        found: where logprob, entropy (address 0: not needed) and lse are written, [M] in float32.
        rows: M.
        size: V.
        inverse: 1 / temperature.
        like: data type of `logits`.
    """
    x, label, factor = pointer(logits, like), pointer(labels, np.int64(0)), np.float32(inverse)
    logprob, entropy, lse = pointer(found[0], F0), pointer(found[1], F0), pointer(found[2], F0)
    for row in range(rows):
        at, top = row * size, np.float32(-np.inf)
        for i in range(size):
            top = max(top, load(x, at + i))
        top *= factor
        total, mean = F0, F0
        if found[1] != 0:
            for i in range(size):
                below = load(x, at + i) * factor - top
                weight = exponential(below)
                total += weight
                mean += weight * below
            entropy[row] = np.float32(math.log(total)) - mean / total
        else:
            for i in range(size):
                total += exponential(load(x, at + i) * factor - top)
        lse[row] = top + np.float32(math.log(total))
        logprob[row] = load(x, at + label[row]) * factor - top - np.float32(math.log(total))


@kernel
def backward(logits: int, labels: int, kept: tuple[int, int], grads: tuple[int, int], out: int, rows: int, size: int,
             inverse: float, like: Any) -> None:  # fmt: skip
    """Write the gradient of x [M, V], g (onehot - p) - h p (log p + entropy).

    Args:
        logits: as of `forward`.
        labels: likewise.
        kept: entropy (read with h only) and lse of `forward`.
        grads: gradients g of logprob and h of entropy, [M] in float32; address 0 for h: there is none.
        out: [M, V].
        rows: M.
        size: V.
        inverse: as of `forward`.
        like: data type of `logits` and `out`.
    """
    x, z, label, factor = pointer(logits, like), pointer(out, like), pointer(labels, np.int64(0)), np.float32(inverse)
    entropy, lse, of_logprob = pointer(kept[0], F0), pointer(kept[1], F0), pointer(grads[0], F0)
    of_entropy = pointer(grads[1], F0)
    for row in range(rows):
        at, g, top = row * size, of_logprob[row] * factor, lse[row]
        if grads[1] != 0:
            h, value = of_entropy[row] * factor, entropy[row]
            for i in range(size):
                logp = load(x, at + i) * factor - top
                store(z, at + i, -exponential(logp) * (g + h * (logp + value)))
        else:
            for i in range(size):
                store(z, at + i, -exponential(load(x, at + i) * factor - top) * g)
        own = at + label[row]
        logp = load(x, own) * factor - top
        slope = g - g * exponential(logp)
        if grads[1] != 0:
            slope -= of_entropy[row] * factor * exponential(logp) * (logp + entropy[row])
        store(z, own, slope)
