"""A query beside keys and values as they lie in memory.

Keys and values are float32 or bfloat16, one after another; sums are float32.

Dimension key: D = head size, a multiple of `PAIR`; K = keys.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trinity.utils.fused.vectors import (
    FLOAT,
    INDICES,
    LINE,
    VECTOR,
    WIDTH,
    WORD,
    ask,
    fused,
    pointed,
    spread,
    zeros,
)

PAIR = 2 * WIDTH
"""Numbers that are read at once: of bfloat16 a vector of those at even places, and one of those at odd places."""
_SUMS = 8
"""Vectors of sums that are held at once; AVX2 has registers for as many."""


@intrinsic
def score(typingctx: Any, query: Any, keys: Any, at: Any, count: Any, size: Any, out: Any, like: Any) -> Any:
    """Write the products of a query [D] with keys [K, D], up to `WIDTH`.

    Args:
        query: address of float32.
        keys: address of numbers of the type `like`.
        at: place of the first key's first number.
        count: K, 1 to `WIDTH`; further products are those of the first key.
        size: D.
        out: address of `WIDTH` float32.
        like: data type of the keys.
    """
    word = types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query, keys, at, count, size, out, _ = arguments
        step, keys = _stepped(builder, keys, at, size, like)
        parts = []
        for first in range(0, WIDTH, _SUMS):
            starts = []
            for key in range(first, first + _SUMS):
                is_there = builder.icmp_signed("<", WORD(key), count)
                offset = builder.select(is_there, builder.mul(WORD(key), step), WORD(0))
                starts.append(builder.add(keys, offset))
            totals = [zeros(builder) for _ in starts]
            with cgutils.for_range(builder, builder.sdiv(size, WORD(PAIR)), intp=WORD) as loop:
                mine = _pair(builder, query, loop.index, types.float32)
                mine = mine if like == types.float32 else _apart(builder, *mine)
                for start, total in zip(starts, totals, strict=True):
                    for one, other in zip(mine, _pair(builder, start, loop.index, like), strict=True):
                        builder.store(fused(builder, one, other, builder.load(total)), total)
            parts.append(_sums(builder, [builder.load(total) for total in totals]))
        builder.store(_halved(builder, *parts), pointed(builder, out), align=4)
        return context.get_dummy_value()

    return types.void(*[word] * 6, like), generate


@intrinsic
def fetch(typingctx: Any, numbers: Any, at: Any, count: Any, like: Any) -> Any:
    """Ask for the memory of `count` numbers from the place `at` on."""
    word = types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, at, count, _ = arguments
        size, start = _stepped(builder, numbers, at, count, like)
        lines = builder.sdiv(builder.add(size, WORD(LINE - 1)), WORD(LINE))
        with cgutils.for_range(builder, lines, intp=WORD) as loop:
            ask(builder, builder.add(start, builder.mul(loop.index, WORD(LINE))))
        return context.get_dummy_value()

    return types.void(word, word, word, like), generate


def _columns(pairs: int) -> Any:
    """Return out [C] += w [K] v [K, C] as a compiled function.

    C is `pairs` times `PAIR`; `at` is the place of the first number of v.
    """

    @intrinsic
    def add(typingctx: Any, weights: Any, values: Any, at: Any, count: Any, size: Any, out: Any, like: Any) -> Any:
        word = types.int64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, values, at, count, size, out, _ = arguments
            step, values = _stepped(builder, values, at, size, like)
            totals = [[zeros(builder) for _ in range(2 * pairs)] for _ in range(2)]
            with cgutils.for_range(builder, builder.sdiv(count, WORD(2)), intp=WORD) as loop:
                first = builder.mul(loop.index, WORD(2))
                for i in range(2):
                    _add(builder, weights, values, builder.add(first, WORD(i)), step, totals[i], like)
            with builder.if_then(builder.trunc(count, ir.IntType(1))):
                _add(builder, weights, values, builder.sub(count, WORD(1)), step, totals[0], like)
            found = [builder.fadd(*(builder.load(part) for part in parts)) for parts in zip(*totals, strict=True)]
            for pair in range(pairs):
                both = found[2 * pair : 2 * pair + 2]
                both = both if like == types.float32 else _together(builder, *both)
                for half, total in enumerate(both):
                    place = pointed(builder, builder.add(out, WORD(4 * WIDTH * (2 * pair + half))))
                    builder.store(builder.fadd(builder.load(place, align=4), total), place, align=4)
            return context.get_dummy_value()

        return types.void(*[word] * 6, like), generate

    return add


def _add(builder: Any, weights: Any, values: Any, key: Any, step: Any, totals: list[Any], like: Any) -> None:
    """Add a key's value, times its weight, to the sums of its columns."""
    place = pointed(builder, builder.add(weights, builder.mul(key, WORD(4))), FLOAT)
    weight = spread(builder, builder.load(place, align=4))
    start = builder.add(values, builder.mul(key, step))
    for pair in range(len(totals) // 2):
        both = _pair(builder, start, WORD(pair), like)
        for value, total in zip(both, totals[2 * pair : 2 * pair + 2], strict=True):
            builder.store(fused(builder, weight, value, builder.load(total)), total)


add_two, add_one = _columns(2), _columns(1)


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """Return one vector: sums of the numbers of each of `vectors`, in order."""
    while len(vectors) > 1:
        vectors = [_halved(builder, *vectors[i : i + 2]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def _halved(builder: Any, one: Any, two: Any) -> Any:
    """Return the sums of neighbours of one vector, then of another."""
    return builder.fadd(*_apart(builder, one, two))


def _apart(builder: Any, one: Any, two: Any) -> list[Any]:
    """Return the numbers at even places of two vectors, and those at odd ones."""
    lanes = ([2 * i + first for i in range(WIDTH)] for first in range(2))
    return [builder.shuffle_vector(one, two, ir.Constant(INDICES, places)) for places in lanes]


def _together(builder: Any, even: Any, odd: Any) -> list[Any]:
    """Return two vectors whose numbers at even and odd places are given."""
    lanes = ([first + i // 2 + i % 2 * WIDTH for i in range(WIDTH)] for first in (0, WIDTH // 2))
    return [builder.shuffle_vector(even, odd, ir.Constant(INDICES, places)) for places in lanes]


def _stepped(builder: Any, numbers: Any, at: Any, size: Any, like: Any) -> tuple[Any, Any]:
    """Return the bytes of `size` numbers, and the address of the one `at`."""
    width = WORD(int(like.bitwidth) // 8)
    return builder.mul(size, width), builder.add(numbers, builder.mul(at, width))


def _pair(builder: Any, start: Any, number: Any, like: Any) -> list[Any]:
    """Return `PAIR` numbers as float32, the `number`th such from `start` on.

    These are the first and the second half, or those at even and at odd places of bfloat16.
    """
    if like == types.float32:
        place = builder.add(start, builder.mul(number, WORD(4 * PAIR)))
        places = (place, builder.add(place, WORD(4 * WIDTH)))
        return [builder.load(pointed(builder, place), align=4) for place in places]
    place = builder.add(start, builder.mul(number, WORD(2 * PAIR)))
    both = builder.load(pointed(builder, place, INDICES), align=2)
    upper = ir.Constant(INDICES, [0xFFFF0000] * WIDTH)
    halves = builder.shl(both, ir.Constant(INDICES, [16] * WIDTH)), builder.and_(both, upper)
    return [builder.bitcast(half, VECTOR) for half in halves]
