"""Kernels of a decoding step.

Dimension key: B = rows, d = hidden size, F = feed-forward size, Q = query heads, H = key heads, M = Q / H,
D = head size, L = positions of a slot.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from trinity.utils.fused.machine import exponential, kernel, load, pointer, store

F0, HIDDEN = np.float32(0), np.float32(-1e30)


@kernel
def add_norm(hidden: int, added: int, weight: int, out: int, rows: int, size: int, eps: float, like: Any) -> None:
    """Add `added` [B, d] to `hidden` in place; write its norm to `out`.

        out = hidden / sqrt(mean(hidden^2) + eps) * weight

    Address 0 for `added` adds nothing, for `out` leaves the norm out.
    """
    x, w, y, more = pointer(hidden, like), pointer(weight, like), pointer(out, like), pointer(added, like)
    for row in range(rows):
        at = row * size
        total = F0
        if added != 0:
            for i in range(size):
                store(x, at + i, load(x, at + i) + load(more, at + i))
        for i in range(size):
            value = load(x, at + i)
            total += value * value
        scale = np.float32(1) / np.float32(math.sqrt(total / np.float32(size) + np.float32(eps)))
        if out != 0:
            for i in range(size):
                store(y, at + i, load(x, at + i) * scale * load(w, i))


@kernel
def gate(fused: int, out: int, rows: int, size: int, like: Any) -> None:
    """Write silu(g) * u [B, F], where `fused` holds g and u side by side."""
    x, y = pointer(fused, like), pointer(out, like)
    for row in range(rows):
        at, to = row * 2 * size, row * size
        for i in range(size):
            g = load(x, at + i)
            store(y, to + i, g / (np.float32(1) + exponential(-g)) * load(x, at + size + i))


@njit(inline="always")
def _rotated(x: Any, at: int, out: Any, to: int, turn: tuple[Any, Any, int], norm: Any, size: int, eps: float) -> None:
    """Write a head [D], normalised if there is a norm, and rotated.

    `out` may be a float32 buffer.
    """
    cos, sin, row = turn
    half: int = size // 2
    scale: Any = np.float32(1)
    weight, has_norm = norm
    if has_norm:
        total = F0
        for i in range(size):
            value = load(x, at + i)
            total += value * value
        scale = np.float32(1) / np.float32(math.sqrt(total / np.float32(size) + np.float32(eps)))
        for i in range(half):
            one = load(x, at + i) * scale * load(weight, i)
            two = load(x, at + half + i) * scale * load(weight, half + i)
            store(out, to + i, one * load(cos, row + i) + two * load(sin, row + i))
            store(out, to + half + i, two * load(cos, row + half + i) + one * load(sin, row + half + i))
        return
    for i in range(half):
        one, two = load(x, at + i), load(x, at + half + i)
        store(out, to + i, one * load(cos, row + i) + two * load(sin, row + i))
        store(out, to + half + i, two * load(cos, row + half + i) + one * load(sin, row + half + i))


@njit(inline="always")
def _queries(x: Any, at: int, q: Any, queries: int, turn: Any, norm: Any, size: int, eps: float) -> None:
    """Write the queries [M, D] of a key head, rotated and divided by sqrt(D)."""
    factor = np.float32(1) / np.float32(math.sqrt(np.float32(size)))
    for m in range(queries):
        _rotated(x, at + m * size, q, m * size, turn, norm, size, eps)
    for i in range(queries * size):
        q[i] *= factor


@njit(inline="always")
def _scores(q: Any, k: Any, at: int, count: int, scores: Any, first: int, row: int, queries: int, size: int) -> None:
    """Write the scores [M, row] of `count` keys from `first` on."""
    for j in range(count):
        key = at + j * size
        for m in range(queries):
            total = F0
            for i in range(size):
                total += q[m * size + i] * load(k, key + i)
            scores[m * row + first + j] = total


@njit(inline="always")
def _weighted(v: Any, at: int, count: int, scores: Any, first: int, out: Any, size: int) -> None:
    """Add `count` values [., D], times their weights, to `out` [D]."""
    j = 0
    while j + 4 <= count:
        one, two, three, four = scores[first + j], scores[first + j + 1], scores[first + j + 2], scores[first + j + 3]
        value = at + j * size
        for i in range(size):
            out[i] += (
                one * load(v, value + i)
                + two * load(v, value + size + i)
                + three * load(v, value + 2 * size + i)
                + four * load(v, value + 3 * size + i)
            )
        j += 4
    while j < count:
        one = scores[first + j]
        for i in range(size):
            out[i] += one * load(v, at + j * size + i)
        j += 1


@njit(inline="always")
def _exponentials(scores: Any, first: int, count: int) -> Any:
    """Replace scores by exp(score - largest); return the sum."""
    top, total = HIDDEN, F0
    for j in range(count):
        top = max(top, scores[first + j])
    for j in range(count):
        weight = exponential(scores[first + j] - top)
        scores[first + j] = weight
        total += weight
    return total


@njit(inline="always")
def _outputs(scores: Any, shared: Any, own: Any, sums: Any, out: Any, to: int, queries: int, size: int) -> None:
    """Write the outputs [M, D] over a prompt's values and the row's own."""
    before, count = shared[2], shared[2] + own[2]
    for m in range(queries):
        first = m * count
        total = _exponentials(scores, first, count)
        for i in range(size):
            sums[i] = F0
        _weighted(shared[0], shared[1], before, scores, first, sums, size)
        _weighted(own[0], own[1], own[2], scores, first + before, sums, size)
        for i in range(size):
            store(out, to + m * size + i, sums[i] / total)


@kernel
def attend(
    qkv: int,
    out: int,
    tables: tuple[int, int, int, int],
    norms: tuple[int, int],
    cache: tuple[int, int, int],
    prompts: tuple[int, int, int, int],
    sizes: tuple[int, int, int, int],
    buffer: int,
    eps: float,
    like: Any,
) -> None:
    """Rotate queries and keys, store keys and values, attend to all of them.

        out = softmax(queries keys^T / sqrt(D), over the row's prompt and its own keys) values

    Args:
        qkv: [B, (Q + 2 H) D].
        out: [B, Q D].
        tables: cosine and sine [., D], positions [B], and the slots' first positions [B].
        norms: weights [D] of the norms of queries and keys; 0: there are none.
        cache: keys and values [., H, L, D] of the slots, and L.
        prompts: for each row, addresses of its prompt's keys and values [H, W, D], their length and W.
        sizes: B, Q, H and D.
        buffer: float32 of M times all keys of a row, and 2 M D.
        eps: of the norms.
        like: data type of all of these.
    """
    rows, num_queries, heads, size = sizes
    x, y = pointer(qkv, like), pointer(out, like)
    cos, sin = pointer(tables[0], like), pointer(tables[1], like)
    positions, starts = pointer(tables[2], np.int64(0)), pointer(tables[3], np.int64(0))
    query_norm, key_norm = (pointer(norms[0], like), norms[0] != 0), (pointer(norms[1], like), norms[1] != 0)
    own_keys, own_values, length = pointer(cache[0], like), pointer(cache[1], like), cache[2]
    key_at, value_at = pointer(prompts[0], np.int64(0)), pointer(prompts[1], np.int64(0))
    past, widths = pointer(prompts[2], np.int64(0)), pointer(prompts[3], np.int64(0))
    queries = num_queries // heads
    q = pointer(buffer, np.float32(0))
    total_of = pointer(buffer + 4 * queries * size, np.float32(0))
    scores = pointer(buffer + 8 * queries * size, np.float32(0))
    for row in range(rows):
        at = row * (num_queries + 2 * heads) * size
        own = positions[row] - starts[row]
        turn = (cos, sin, positions[row] * size)
        before, width = past[row], widths[row]
        keys, values = pointer(key_at[row], like), pointer(value_at[row], like)
        count = before + own + 1
        for head in range(heads):
            slot = (row * heads + head) * length * size
            new = slot + own * size
            _rotated(x, at + (num_queries + head) * size, own_keys, new, turn, key_norm, size, eps)
            for i in range(size):
                own_values[new + i] = x[at + (num_queries + heads + head) * size + i]
            _queries(x, at + head * queries * size, q, queries, turn, query_norm, size, eps)
            prompt = head * width * size
            _scores(q, keys, prompt, before, scores, 0, count, queries, size)
            _scores(q, own_keys, slot, own + 1, scores, before, count, queries, size)
            to = (row * num_queries + head * queries) * size
            shared, own_part = (values, prompt, before), (own_values, slot, own + 1)
            _outputs(scores, shared, own_part, total_of, y, to, queries, size)
