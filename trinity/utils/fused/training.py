"""Kernels of training, forward and backward.

Dimension key: N = packed tokens, F = feed-forward size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trinity.utils.fused.machine import exponential, kernel, load, pointer, store


@kernel
def gate_backward(fused: int, grad: int, out: int, rows: int, size: int, like: Any) -> None:
    """Write the gradient [N, 2 F] of g and u from that of silu(g) * u [N, F].

    Args:
        fused: g and u side by side, [N, 2 F].
        grad: [N, F].
        out: [N, 2 F].
        rows: N.
        size: F.
        like: number type of all of these.
    """
    x, y, z = pointer(fused, like), pointer(grad, like), pointer(out, like)
    for row in range(rows):
        at, to = row * 2 * size, row * size
        for i in range(size):
            g, u, of_out = load(x, at + i), load(x, at + size + i), load(y, to + i)
            sigmoid = np.float32(1) / (np.float32(1) + exponential(-g))
            store(z, at + i, of_out * u * sigmoid * (np.float32(1) + g * (np.float32(1) - sigmoid)))
            store(z, at + size + i, of_out * g * sigmoid)
