"""Kernels of a decoding step.

Dimension key: B = rows, d = hidden size, F = feed-forward size, Q = query heads, H = key heads, M = Q / H,
D = head size, L = positions of a slot.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from trinity.utils.fused.keys import PAIR, add_one, add_two, fetch, score
from trinity.utils.fused.machine import exponential, kernel, load, pointer, store
from trinity.utils.fused.rows import COLUMNS, LOWEST, weigh
from trinity.utils.fused.vectors import WIDTH

F0 = np.float32(0)


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
def _entered(x: Any, at: tuple[int, int, int], cache: tuple[Any, Any, int], q: Any, turn: Any, norms: Any,
             sizes: tuple[int, int], eps: float) -> None:  # fmt: skip
    """Write a head's queries [M, D] to `q`, and to the cache what is new.

    `at` are the places of its queries, key and value; `cache` has the place of the new key and value.
    """
    (queries, size), (keys, values, new) = sizes, cache
    _rotated(x, at[1], keys, new, turn, norms[1], size, eps)
    for i in range(size):
        values[new + i] = x[at[2] + i]
    _queries(x, at[0], q, queries, turn, norms[0], size, eps)


@njit(inline="always")
def _score(q: int, keys: int, at: int, count: int, scores: int, row: int, sizes: tuple[int, int], like: Any) -> None:
    """Write the scores [M, row] of `count` keys from the place `at` on."""
    queries, size = sizes
    for first in range(0, count, COLUMNS):
        for m in range(queries):
            for key in range(first, min(first + COLUMNS, count), WIDTH):
                to = scores + 4 * (m * row + key)
                score(q + 4 * m * size, keys, at + key * size, min(WIDTH, count - key), size, to, like)


@njit(inline="always")
def _weights(scores: int, count: int) -> Any:
    """Replace scores by exp(score - largest); return the sum."""
    row, seen = pointer(scores, F0), min(COLUMNS, count)
    top, total = weigh(scores, seen, seen, LOWEST)
    for first in range(COLUMNS, count, COLUMNS):
        before, seen = top, min(COLUMNS, count - first)
        top, more = weigh(scores + 4 * first, seen, seen, before)
        if top != before:
            factor = exponential(before - top)
            total *= factor
            for i in range(first):
                row[i] *= factor
        total += more
    return total


@njit(inline="always")
def _add(
    weights: int, row: int, values: int, at: int, count: int, sums: int, sizes: tuple[int, int], like: Any
) -> None:
    """Add `count` values, times their weights [M, row], to the sums [M, D].

    The first is at the place `at`.
    """
    queries, size = sizes
    for first in range(0, count, COLUMNS):
        seen = min(COLUMNS, count - first)
        for m in range(queries):
            of, place, into, column = weights + 4 * (m * row + first), at + first * size, sums + 4 * m * size, 0
            while column + 2 * PAIR <= size:
                add_two(of, values, place + column, seen, size, into + 4 * column, like)
                column += 2 * PAIR
            if column < size:
                add_one(of, values, place + column, seen, size, into + 4 * column, like)


@njit(inline="always")
def _write(sums: Any, totals: Any, out: Any, to: int, sizes: tuple[int, int]) -> None:
    """Write sums [M, D], divided by their totals [M]."""
    queries, size = sizes
    for m in range(queries):
        for i in range(size):
            store(out, to + m * size + i, sums[m * size + i] / totals[m])


@njit(inline="always")
def _whole(address: int) -> Any:
    """Return a pointer to whole numbers."""
    return pointer(address, np.int64(0))


def buffer_size(queries: int, size: int, length: int) -> int:
    """Return the size of the buffer of `attend`, in numbers.

    It holds queries, their sums, and scores of up to `length` keys.
    """
    return queries * (2 * size + length + COLUMNS)


@kernel
def attend(
    qkv: int,
    out: int,
    tables: tuple[int, int],
    places: tuple[int, int, int],
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
        tables: cosine and sine [., D].
        places: positions [B], the slots' first positions [B], and what is added to positions for the rotation [B].
        norms: weights [D] of the norms of queries and keys; 0: there are none.
        cache: keys and values [., H, L, D] of the slots, and L; D is a multiple of `PAIR`.
        prompts: for each row, addresses of its prompt's keys and values [H, W, D], their length and W.
        sizes: B, Q, H and D.
        buffer: see `buffer_size`.
        eps: of the norms.
        like: data type of all of these.
    """
    rows, num_queries, heads, size = sizes
    x, y = pointer(qkv, like), pointer(out, like)
    cos, sin = pointer(tables[0], like), pointer(tables[1], like)
    positions, starts, shifts = _whole(places[0]), _whole(places[1]), _whole(places[2])
    query_norm, key_norm = (pointer(norms[0], like), norms[0] != 0), (pointer(norms[1], like), norms[1] != 0)
    own_keys, own_values, length = pointer(cache[0], like), pointer(cache[1], like), cache[2]
    key_at, value_at, past, widths = _whole(prompts[0]), _whole(prompts[1]), _whole(prompts[2]), _whole(prompts[3])
    queries = num_queries // heads
    sums, scores, shape = buffer + 4 * queries * size, buffer + 8 * queries * size, (queries, size)
    q, total = pointer(buffer, F0), pointer(sums, F0)
    for row in range(rows):
        at = row * (num_queries + 2 * heads) * size
        before, own = past[row], positions[row] - starts[row] + 1
        turn, stride = (cos, sin, (positions[row] + shifts[row]) * size), before + own + COLUMNS
        for head in range(heads):
            slot, prompt = (row * heads + head) * length * size, head * widths[row] * size
            new, key = slot + (own - 1) * size, at + (num_queries + head) * size
            inputs, into = (at + head * queries * size, key, key + heads * size), (own_keys, own_values, new)
            _entered(x, inputs, into, q, turn, (query_norm, key_norm), shape, eps)
            for tensor in range(2):
                fetch(cache[tensor], slot + length * size, own * size, like)
            _score(buffer, key_at[row], prompt, before, scores, stride, shape, like)
            _score(buffer, cache[0], slot, own, scores + 4 * before, stride, shape, like)
            for i in range(queries * size):
                total[i] = F0
            for m in range(queries):
                q[m] = _weights(scores + 4 * m * stride, before + own)
            _add(scores, stride, value_at[row], prompt, before, sums, shape, like)
            _add(scores + 4 * before, stride, cache[1], slot, own, sums, shape, like)
            _write(total, q, y, (row * num_queries + head * queries) * size, shape)
