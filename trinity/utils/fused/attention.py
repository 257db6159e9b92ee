"""Causal attention of packed tokens, forward and backward.

Keys are taken in blocks, for which all queries that see them are computed; a query's largest score, its sum and its
output are kept over the blocks (arXiv:2205.14135, algorithm 1). The backward pass computes the weights again.

    out[i] = sum over j of w[i, j] v[j],  w[i, j] = exp(q[i] . k[j] - lse[i])

Dimension key: N = packed tokens, Q = query heads, H = key heads, M = Q / H, D = head size, P = pairs of spans.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit

from trinity.utils.fused.machine import exact_kernel, exponential, kernel, load, pointer
from trinity.utils.fused.rows import COLUMNS, slopes, weigh
from trinity.utils.fused.tile import multiply, multiply_double
from trinity.utils.fused.vectors import WIDTH

KEYS, QUERIES = COLUMNS, 24
"""Keys and queries of a block: its scores, 6 KB, stay in the first cache."""
F0 = np.float32(0)
IS_DOUBLE = torch.cpu._is_avx512_supported()
"""Sums of two vectors a row stay in registers, of which there are 32."""
PAIR = 5
"""Numbers of a pair of spans: first key, keys, first query, queries, place of the first query among the keys."""


def buffer_size(size: int) -> int:
    """Return the size of a kernel's buffer, in numbers.

    It holds scores, keys and values, their gradients, and queries.
    """
    return 2 * QUERIES * KEYS + 5 * KEYS * size + 2 * QUERIES * size


@njit(inline="always")
def _copied(x: Any, at: int, distance: int, out: Any, rows: int, size: int, scale: Any) -> None:
    """Write rows at a distance, times `scale`, into float32 rows."""
    for row in range(rows):
        for i in range(size):
            out[row * size + i] = load(x, at + row * distance + i) * scale


@njit(inline="always")
def _panels(rows: int) -> int:
    return (rows + WIDTH - 1) // WIDTH


@njit(inline="always")
def _in_panels(x: Any, at: int, distance: int, out: Any, rows: int, size: int) -> None:
    """Write rows [K, D] as float32 panels [., D, WIDTH].

    The last one is filled up with zeros.
    """
    for row in range(_panels(rows) * WIDTH):
        to = (row // WIDTH) * WIDTH * size + row % WIDTH
        for i in range(size):
            out[to + i * WIDTH] = load(x, at + row * distance + i) if row < rows else F0


@njit(inline="always")
def _products(rows: int, panels: int, out: int, count: int, size: int, num_keys: int) -> None:
    """Write the products [count, KEYS] of rows [count, D] with packed keys."""
    panel, number, apart = 0, _panels(num_keys), WIDTH * size
    while panel < number:
        place, to = panels + 4 * panel * apart, out + 4 * panel * WIDTH
        if IS_DOUBLE and panel + 1 < number:
            multiply_double(rows, (size, 1), place, to, (WIDTH, KEYS), count, size, False, apart)
            panel += 2
        else:
            multiply(rows, (size, 1), place, to, (WIDTH, KEYS), count, size, False)
            panel += 1


@njit(inline="always")
def _sums(a: int, of_a: tuple[int, int], b: int, c: int, steps: tuple[int, int], rows: int, terms: int,
          size: int) -> None:  # fmt: skip
    """Add a [rows, terms] b [terms, D] to c."""
    column = 0
    while column < size:
        if IS_DOUBLE and column + WIDTH < size:
            multiply_double(a, of_a, b + 4 * column, c + 4 * column, steps, rows, terms, True, WIDTH)
            column += 2 * WIDTH
        else:
            multiply(a, of_a, b + 4 * column, c + 4 * column, steps, rows, terms, True)
            column += WIDTH


@njit(inline="always")
def _weigh(scores: int, columns: int, seen: int, state: Any, at: int, out: Any, to: int, size: int) -> None:
    """Replace a row of scores by weights, relative to its new largest score.

    The row's sum and output are brought to it.
    """
    before = state[at]
    top, total = weigh(scores, columns, seen, before)
    if state[at + 1] > F0 and top != before:
        factor = exponential(before - top)
        state[at + 1] *= factor
        for i in range(size):
            out[to + i] *= factor
    state[at] = top
    state[at + 1] += total


@njit(inline="always")
def _end(table: Any, begin: int, num_pairs: int) -> int:
    """Return the first pair after `begin` that has other keys."""
    end = begin + 1
    while end < num_pairs and table[end * PAIR] == table[begin * PAIR]:
        end += 1
    return end


@njit(inline="always")
def _attend(
    tensors: Any, distances: Any, sizes: Any, buffer: int, head: int, count: int, place: int, token: int, rows: int,
    scale: Any, like: Any,
) -> None:  # fmt: skip
    """Add a block of keys to the outputs of some neighbouring queries.

    The first query is `place` keys after the first key.
    """
    _, num_queries, heads, size, _ = sizes
    repeat, of_out = num_queries // heads, num_queries * size
    keys_at = buffer + 4 * QUERIES * KEYS
    queries = keys_at + 8 * KEYS * size
    q, out, state = pointer(tensors[0], like), pointer(tensors[3], F0), pointer(tensors[4], F0)
    for query in range(head * repeat, (head + 1) * repeat):
        _copied(q, token * distances[0] + query * size, distances[0], pointer(queries, F0), rows, size, scale)
        _products(queries, keys_at, buffer, rows, size, count)
        for row in range(rows):
            seen = max(0, min(count, place + row + 1))
            where = (token + row) * num_queries + query
            _weigh(buffer + 4 * row * KEYS, count, seen, state, 2 * where, out, where * size, size)
        into = tensors[3] + 4 * (token * of_out + query * size)
        _sums(buffer, (KEYS, 1), keys_at + 4 * KEYS * size, into, (size, of_out), rows, count, size)


@exact_kernel
def _forward_keys(
    tensors: tuple[int, int, int, int, int], distances: tuple[int, int, int], pairs: int,
    sizes: tuple[int, int, int, int, int], buffer: int, begin: int, end: int, head: int, start: int, scale: Any,
    like: Any,
) -> None:  # fmt: skip
    """Add a block of keys, from `start` on, to the outputs of its pairs."""
    none, size = np.float32(0), sizes[3]
    table, k, v = pointer(pairs, np.int64(0)), pointer(tensors[1], like), pointer(tensors[2], like)
    keys_at = buffer + 4 * QUERIES * KEYS
    count, key = min(KEYS, table[begin * PAIR + 1] - start), table[begin * PAIR] + start
    _in_panels(k, key * distances[1] + head * size, distances[1], pointer(keys_at, none), count, size)
    values = pointer(keys_at + 4 * KEYS * size, none)
    _copied(v, key * distances[2] + head * size, distances[2], values, count, size, np.float32(1))
    for pair in range(begin, end):
        token, num_tokens, place = table[pair * PAIR + 2], table[pair * PAIR + 3], table[pair * PAIR + 4] - start
        for at in range(0, num_tokens, QUERIES):
            rows = min(QUERIES, num_tokens - at)
            if place + at + rows > 0:
                seen = min(count, place + at + rows)  # by the last of them
                _attend(tensors, distances, sizes, buffer, head, seen, place + at, token + at, rows, scale, like)


@kernel
def forward(
    tensors: tuple[int, int, int, int, int],
    distances: tuple[int, int, int],
    pairs: int,
    sizes: tuple[int, int, int, int, int],
    buffer: int,
    scale: float,
    like: Any,
) -> None:
    """Write the outputs [N, Q, D] and log-sums [N, Q].

    Args:
        tensors: queries [N, Q, D], keys and values [N, H, D], and in float32 the output (zeros) and for each
            query and head two numbers, `LOWEST` and 0, of which the first becomes the log-sum.
        distances: between tokens of queries, keys and values, in numbers.
        pairs: [P, PAIR], equal keys one after another; together they hold every key that a query sees.
        sizes: N, Q, H, D and P.
        buffer: see `buffer_size`.
        scale: of the products of queries and keys.
        like: data type of queries, keys and values.
    """
    num_tokens, num_queries, heads, size, num_pairs = sizes
    none, begin = np.float32(0), 0
    out, state, table = pointer(tensors[3], none), pointer(tensors[4], none), pointer(pairs, np.int64(0))
    while begin < num_pairs:
        end = _end(table, begin, num_pairs)
        for start in range(0, table[begin * PAIR + 1], KEYS):
            for head in range(heads):
                _forward_keys(
                    tensors, distances, pairs, sizes, buffer, begin, end, head, start, np.float32(scale), like
                )
        begin = end
    for place in range(num_tokens * num_queries):
        total = max(state[2 * place + 1], np.float32(1e-37))  # a query that no pair holds
        share = np.float32(1) / total
        for i in range(size):
            out[place * size + i] *= share
        state[2 * place] += np.float32(math.log(total))


@njit(inline="always")
def _derive(
    tensors: Any, given: Any, found: Any, distances: Any, sizes: Any, buffer: int, head: int, count: int, place: int,
    token: int, rows: int, scale: Any, like: Any,
) -> None:  # fmt: skip
    """Add the gradients of a block of keys and of some queries.

    See `_attend`.
    """
    _, num_queries, heads, size, _ = sizes
    repeat, of_out, of_q = num_queries // heads, num_queries * size, distances[0]
    none, step = np.float32(0), 4 * KEYS * size
    q, grad = pointer(tensors[0], like), pointer(given[0], like)
    state, deltas = pointer(tensors[4], none), pointer(given[1], none)
    weights, products, blocks = buffer, buffer + 4 * QUERIES * KEYS, buffer + 8 * QUERIES * KEYS
    queries, grads = blocks + 5 * step, blocks + 5 * step + 4 * QUERIES * size
    for query in range(head * repeat, (head + 1) * repeat):
        _copied(q, token * of_q + query * size, of_q, pointer(queries, none), rows, size, scale)
        _copied(grad, token * of_out + query * size, of_out, pointer(grads, none), rows, size, np.float32(1))
        _products(queries, blocks, weights, rows, size, count)
        _products(grads, blocks + step, products, rows, size, count)
        for row in range(rows):
            seen = max(0, min(count, place + row + 1))
            where = (token + row) * num_queries + query
            of, to = weights + 4 * row * KEYS, products + 4 * row * KEYS
            slopes(of, to, count, seen, state[2 * where], deltas[where])
        into = found[0] + 4 * (token * distances[3] + query * size)
        _sums(products, (KEYS, 1), blocks + 2 * step, into, (size, distances[3]), rows, count, size)
        _sums(products, (1, KEYS), queries, blocks + 3 * step, (size, size), count, rows, size)
        _sums(weights, (1, KEYS), grads, blocks + 4 * step, (size, size), count, rows, size)


@exact_kernel
def _backward_keys(
    tensors: tuple[int, int, int, int, int], given: tuple[int, int], found: tuple[int, int, int],
    distances: tuple[int, int, int, int, int, int], pairs: int, sizes: tuple[int, int, int, int, int], buffer: int,
    begin: int, end: int, head: int, start: int, scale: Any, like: Any,
) -> None:  # fmt: skip
    """Add the gradients of a block of keys; see `_forward_keys`."""
    none, size = np.float32(0), sizes[3]
    table, k, v = pointer(pairs, np.int64(0)), pointer(tensors[1], like), pointer(tensors[2], like)
    blocks, step = buffer + 8 * QUERIES * KEYS, 4 * KEYS * size
    count, key = min(KEYS, table[begin * PAIR + 1] - start), table[begin * PAIR] + start
    from_k, from_v = key * distances[1] + head * size, key * distances[2] + head * size
    _in_panels(k, from_k, distances[1], pointer(blocks, none), count, size)
    _in_panels(v, from_v, distances[2], pointer(blocks + step, none), count, size)
    _copied(k, from_k, distances[1], pointer(blocks + 2 * step, none), count, size, scale)
    sums = pointer(blocks + 3 * step, none)
    for i in range(2 * KEYS * size):
        sums[i] = F0
    for pair in range(begin, end):
        token, num_tokens, place = table[pair * PAIR + 2], table[pair * PAIR + 3], table[pair * PAIR + 4] - start
        for at in range(0, num_tokens, QUERIES):
            rows = min(QUERIES, num_tokens - at)
            if place + at + rows > 0:
                seen = min(count, place + at + rows)  # by the last of them
                _derive(
                    tensors, given, found, distances, sizes, buffer, head, seen, place + at, token + at, rows, scale,
                    like,
                )  # fmt: skip
    grad_k, grad_v = pointer(found[1], none), pointer(found[2], none)
    for row in range(count):
        to_k, to_v = (key + row) * distances[4] + head * size, (key + row) * distances[5] + head * size
        for i in range(size):
            grad_k[to_k + i] += sums[row * size + i]
            grad_v[to_v + i] += sums[(KEYS + row) * size + i]


@kernel
def backward(
    tensors: tuple[int, int, int, int, int],
    given: tuple[int, int],
    found: tuple[int, int, int],
    distances: tuple[int, int, int, int, int, int],
    pairs: int,
    sizes: tuple[int, int, int, int, int],
    buffer: int,
    scale: float,
    like: Any,
) -> None:
    """Add the gradients of queries, keys and values.

    Args:
        tensors: as of `forward`, whose outputs these are; the output is of the type `like` here.
        given: gradient of the output [N, Q, D], of the type `like`, and where its products with the output [N, Q] are
            written, in float32.
        found: gradients [N, Q, D] and [N, H, D] in float32, zeros.
        distances: as of `forward`, then those between tokens of the gradients.
        pairs: likewise.
        sizes: likewise.
        buffer: likewise.
        scale: likewise.
        like: likewise.
    """
    num_pairs, begin, table = sizes[4], 0, pointer(pairs, np.int64(0))
    grad, out, deltas = pointer(given[0], like), pointer(tensors[3], like), pointer(given[1], np.float32(0))
    for place in range(sizes[0] * sizes[1]):
        total = np.float32(0)
        for i in range(sizes[3]):
            total += load(grad, place * sizes[3] + i) * load(out, place * sizes[3] + i)
        deltas[place] = total
    while begin < num_pairs:
        end = _end(table, begin, num_pairs)
        for start in range(0, table[begin * PAIR + 1], KEYS):
            for head in range(sizes[2]):
                _backward_keys(
                    tensors, given, found, distances, pairs, sizes, buffer, begin, end, head, start, np.float32(scale),
                    like,
                )  # fmt: skip
        begin = end
