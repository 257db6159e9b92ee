"""Products of small matrices whose sums stay in registers.

A tile is some rows of a result times `WIDTH` columns. All numbers are float32; a result's sum is taken in the order of
the terms, so its bits depend on no other row.

Dimension key: R = rows of a tile, K = terms of a sum, N = rows, W = `WIDTH`.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trinity.utils.fused.machine import exact_kernel
from trinity.utils.fused.vectors import FLOAT, LINE, WORD, ask, fused, pointed, spread, zeros


def _tile(rows: int) -> Any:
    """Return c [R, W] (+)= a [R, K] b [K, W] as a compiled function."""

    @intrinsic
    def tile(typingctx: Any, a: Any, of_a: Any, b: Any, c: Any, steps: Any, count: Any, adds: Any, ahead: Any) -> Any:
        word, pair = types.int64, types.UniTuple(types.int64, 2)
        signature = types.void(word, pair, word, word, pair, word, types.boolean, pair)
        return signature, lambda context, builder, _, arguments: _generate(context, builder, arguments, rows)

    return tile


def _generate(context: Any, builder: Any, arguments: Any, rows: int) -> Any:
    a, strides, b, c, steps, count, adds, ahead = arguments
    (row_a, term_a), (step_b, step_c) = (_in_bytes(builder, pair) for pair in (strides, steps))
    places = [pointed(builder, builder.add(c, builder.mul(step_c, WORD(r)))) for r in range(rows)]
    sums = [zeros(builder) for _ in places]
    with builder.if_then(adds):
        for into, total in zip(places, sums, strict=True):
            builder.store(builder.load(into, align=4), total)
    offsets = [builder.mul(row_a, WORD(r)) for r in range(rows)]
    with cgutils.for_range(builder, count, intp=WORD) as loop:
        other = builder.load(pointed(builder, builder.add(b, builder.mul(loop.index, step_b))), align=4)
        first, step = (builder.extract_value(ahead, i) for i in range(2))
        ask(builder, builder.add(first, builder.mul(loop.index, step)))
        at = builder.add(a, builder.mul(loop.index, term_a))
        for offset, total in zip(offsets, sums, strict=True):
            number = spread(builder, builder.load(pointed(builder, builder.add(at, offset), FLOAT), align=4))
            builder.store(fused(builder, number, other, builder.load(total)), total)
    for into, total in zip(places, sums, strict=True):
        builder.store(builder.load(total), into, align=4)
    return context.get_dummy_value()


def _in_bytes(builder: Any, pair: Any) -> list[Any]:
    return [builder.mul(builder.extract_value(pair, i), WORD(4)) for i in range(2)]


_one, _two, _three, _four, _five, _six = (_tile(rows) for rows in range(1, 7))


@exact_kernel
def _some(a: int, of_a: tuple[int, int], b: int, c: int, steps: tuple[int, int], rows: int, terms: int, adds: bool,
          ahead: tuple[int, int]) -> None:  # fmt: skip
    if rows == 6:
        _six(a, of_a, b, c, steps, terms, adds, ahead)
    elif rows == 5:
        _five(a, of_a, b, c, steps, terms, adds, ahead)
    elif rows == 4:
        _four(a, of_a, b, c, steps, terms, adds, ahead)
    elif rows == 3:
        _three(a, of_a, b, c, steps, terms, adds, ahead)
    elif rows == 2:
        _two(a, of_a, b, c, steps, terms, adds, ahead)
    else:
        _one(a, of_a, b, c, steps, terms, adds, ahead)


@exact_kernel
def multiply(
    a: int,
    of_a: tuple[int, int],
    b: int,
    c: int,
    steps: tuple[int, int],
    rows: int,
    terms: int,
    adds: bool,
    following: int = 0,
) -> None:
    """Write c [N, W] = a [N, K] b [K, W], or add it to c.

    Args:
        a: address of the factors.
        of_a: distances of a factor's rows and of its terms, in numbers.
        b: address of K terms of W numbers.
        c: address of N rows of W numbers.
        steps: distances of the terms of `b` and of the rows of `c`, in numbers.
        rows: N.
        terms: K.
        adds: add to what is in c.
        following: address of the terms, one after another, that are read next; 0: they are at hand.
    """
    tiles = (rows + 5) // 6
    step = LINE // tiles if following != 0 and tiles > 1 else 0  # one tile waits for memory in any case
    row = 0
    for number in range(tiles):
        left, count = rows - row, 6
        if left < 6:
            count = left
        elif left == 7 or left == 8:  # a tile of one or two rows waits for its own sums
            count = 4
        # Asking for an address that is not mapped would be slow.
        ahead = ((following if following != 0 else b) + number * step * terms, step)
        _some(a + 4 * row * of_a[0], of_a, b, c + 4 * row * steps[1], steps, count, terms, adds, ahead)
        row += count
