"""Kernels of training, forward and backward.

Dimension key: N = packed tokens, F = feed-forward size, d = hidden size, H = heads, D = head size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trinity.utils.fused.machine import exponential, kernel, load, pointer, store

SUMMED_ROWS = 128
"""Rows whose gradients of a norm's weight are summed first; sums of sums round less than one long sum."""
F0 = np.float32(0)


@kernel
def gate_backward(fused: int, grad: int, out: int, rows: int, size: int, like: Any) -> None:
    """Write the gradient [N, 2 F] of g and u from that of silu(g) * u [N, F].

    Args:
        fused: g and u side by side, [N, 2 F].
        grad: [N, F].
        out: [N, 2 F].
        rows: N.
        size: F.
        like: data type of all of these.
    """
    x, y, z = pointer(fused, like), pointer(grad, like), pointer(out, like)
    for row in range(rows):
        at, to = row * 2 * size, row * size
        for i in range(size):
            g, u, of_out = load(x, at + i), load(x, at + size + i), load(y, to + i)
            sigmoid = np.float32(1) / (np.float32(1) + exponential(-g))
            store(z, at + i, of_out * u * sigmoid * (np.float32(1) + g * (np.float32(1) - sigmoid)))
            store(z, at + size + i, of_out * g * sigmoid)


@kernel
def norm(x: int, added: int, weight: int, total: int, out: int, scales: int, rows: int, size: int, eps: float,
         likes: tuple[Any, Any]) -> None:  # fmt: skip
    """Write the norm [N, d] of `x`, or of its sum with `added`.

        out = y / sqrt(mean(y^2) + eps) * weight,  y = x + added

    Args:
        x: [N, d].
        added: [N, d]; address 0: nothing is added.
        weight: [d] in float32.
        total: where y is written; read only with `added`.
        out: [N, d].
        scales: where the factors [N] of the rows are written, in float32.
        rows: N.
        size: d.
        eps: of the mean.
        likes: data types of `x` and `total`, and of `added` and `out`.
    """
    like, like_out = likes
    y, w, z, s = pointer(x, like), pointer(weight, F0), pointer(out, like_out), pointer(scales, F0)
    more, sums = pointer(added, like_out), pointer(total, like)
    for row in range(rows):
        at, square = row * size, F0
        if added != 0:
            for i in range(size):
                value = load(y, at + i) + load(more, at + i)
                store(sums, at + i, value)
                square += value * value
        else:
            for i in range(size):
                value = load(y, at + i)
                square += value * value
        s[row] = np.float32(1) / np.float32(math.sqrt(square / np.float32(size) + np.float32(eps)))
        source, factor = sums if added != 0 else y, s[row]
        for i in range(size):
            store(z, at + i, load(source, at + i) * factor * load(w, i))


@kernel
def norm_backward(x: int, weight: int, scales: int, grads: tuple[int, int], found: tuple[int, int, int], buffer: int,
                  rows: int, size: int, likes: tuple[Any, Any]) -> None:  # fmt: skip
    """Write the gradients of `norm`.

    Args:
        x: y of `norm`, [N, d].
        weight: as of `norm`.
        scales: likewise.
        grads: gradients of `out`, and of y by other ways, [N, d]; address 0: there is no other way.
        found: gradient of y [N, d], the same in the data type of `added` (address 0: nothing is added), and the
            gradient of the weight (zeros [d] in float32; address 0: it needs none).
        buffer: [d] in float32.
        rows: N.
        size: d.
        likes: as of `norm`.
    """
    like, like_out = likes
    y, w, s, part = pointer(x, like), pointer(weight, F0), pointer(scales, F0), pointer(buffer, F0)
    g, other = pointer(grads[0], like_out), pointer(grads[1], like)
    of_y, of_added, of_weight = pointer(found[0], like), pointer(found[1], like_out), pointer(found[2], F0)
    for first in range(0, rows, SUMMED_ROWS):
        for i in range(size):
            part[i] = F0
        for row in range(first, min(rows, first + SUMMED_ROWS)):
            at, factor, total = row * size, s[row], F0
            for i in range(size):
                inner = load(g, at + i) * load(y, at + i) * factor
                part[i] += inner
                total += inner * w[i]
            projection = factor * factor * total / np.float32(size)
            if grads[1] != 0:
                for i in range(size):
                    value = load(g, at + i) * w[i] * factor - load(y, at + i) * projection + load(other, at + i)
                    store(of_y, at + i, value)
            else:
                for i in range(size):
                    store(of_y, at + i, load(g, at + i) * w[i] * factor - load(y, at + i) * projection)
            if found[1] != 0:
                for i in range(size):
                    store(of_added, at + i, load(of_y, at + i))
        if found[2] != 0:
            for i in range(size):
                of_weight[i] += part[i]


@kernel
def rotate(x: int, cos: int, sin: int, out: int, sizes: tuple[int, int, int, int], others: int, is_backward: bool,
           likes: tuple[Any, Any]) -> None:  # fmt: skip
    """Write heads [N, H, D] rotated, or the gradient of what was rotated.

        out = x * cos + roll(x, D / 2) * sin;  gradient: x * cos + roll(x * sin, D / 2)

    Args:
        x: [N, H, D], the heads of a token one after another, then the other heads.
        cos: [N, D].
        sin: [N, D], its first half negated.
        out: [N, H, D] with the other heads of `x` as they are.
        sizes: N, H, D and the distance between the tokens of `x`, in numbers.
        others: number of the other heads.
        is_backward: write the gradient.
        likes: data types of `x`, and of the rest.
    """
    like, like_out = likes
    y, c, s, z = pointer(x, like), pointer(cos, like_out), pointer(sin, like_out), pointer(out, like_out)
    rows, heads, size, distance = sizes
    half = size // 2
    for row in range(rows):
        turn = row * size
        own, other = (turn + half, turn) if is_backward else (turn, turn + half)
        for head in range(heads):
            at, to = row * distance + head * size, (row * (heads + others) + head) * size
            for i in range(half):
                one, two = load(y, at + i), load(y, at + half + i)
                store(z, to + i, one * load(c, turn + i) + two * load(s, own + i))
                store(z, to + half + i, two * load(c, turn + half + i) + one * load(s, other + i))
        at, to = row * distance + heads * size, (row * (heads + others) + heads) * size
        for i in range(others * size):
            store(z, to + i, load(y, at + i))


@kernel
def column_sums(x: int, out: int, buffer: int, rows: int, size: int, like: Any) -> None:
    """Add up the columns of [N, d].

    Args:
        x: [N, d].
        out: zeros [d] in float32.
        buffer: [d] in float32.
        rows: N.
        size: d.
        like: data type of `x`.
    """
    y, sums, part = pointer(x, like), pointer(out, F0), pointer(buffer, F0)
    for first in range(0, rows, SUMMED_ROWS):
        for i in range(size):
            part[i] = F0
        for row in range(first, min(rows, first + SUMMED_ROWS)):
            for i in range(size):
                part[i] += load(y, row * size + i)
        for i in range(size):
            sums[i] += part[i]
