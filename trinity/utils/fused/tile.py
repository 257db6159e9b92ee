"""Products of small matrices whose sums stay in registers.

A tile is some rows of a result times `WIDTH` columns. All numbers are float32; a result's sum is taken in the order of
the terms, so its bits depend on no other row.

Dimension key: R = rows of a tile, K = terms of a sum, N = rows, W = `WIDTH`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trinity.utils.fused.machine import exact_kernel
from trinity.utils.fused.vectors import FLOAT, LINE, WIDTH, WORD, ask, fused, pointed, spread, zeros

Write = Callable[[Any, list[Any], int], None]


def _tile(rows: int) -> Any:
    """Return c [R, W] (+)= a [R, K] b [K, W]; `more` is what to ask for."""

    def write(builder: Any, arguments: list[Any], rows: int) -> None:
        *others, ahead = arguments
        first, step = (builder.extract_value(ahead, i) for i in range(2))
        _generate(builder, others, rows, lambda at: ask(builder, builder.add(first, builder.mul(at, step))))

    return _compiled(rows, types.UniTuple(types.int64, 2), write)


def _double_tile(rows: int) -> Any:
    """Return c [R, 2 W] (+)= a [R, K] b [K, 2 W]; `more` is `apart`."""

    def write(builder: Any, arguments: list[Any], rows: int) -> None:
        *others, apart = arguments
        _generate(builder, others, rows, lambda at: None, (WORD(0), builder.mul(apart, WORD(4))))

    return _compiled(rows, types.int64, write)


def _compiled(rows: int, last: Any, write: Write) -> Any:
    """Return a function of R rows, whose last argument is of the type `last`."""

    @intrinsic
    def tile(typingctx: Any, a: Any, of_a: Any, b: Any, c: Any, steps: Any, count: Any, adds: Any, more: Any) -> Any:
        word, pair = types.int64, types.UniTuple(types.int64, 2)
        signature = types.void(word, pair, word, word, pair, word, types.boolean, last)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write(builder, arguments, rows)
            return context.get_dummy_value()

        return signature, generate

    return tile


def _generate(
    builder: Any, arguments: list[Any], rows: int, before: Callable[[Any], None], halves: Sequence[Any] = (WORD(0),)
) -> None:
    """Write the code of a tile.

    Args:
        builder: writes it.
        arguments: of `multiply`.
        rows: R.
        before: writes what comes before a term.
        halves: distances of the vectors of a term of b, in bytes.
    """
    a, strides, b, c, steps, count, adds = arguments
    (row_a, term_a), (step_b, step_c) = (_in_bytes(builder, pair) for pair in (strides, steps))
    along = [WORD(4 * WIDTH * half) for half in range(len(halves))]
    starts = [builder.add(c, builder.mul(step_c, WORD(r))) for r in range(rows)]
    places = [[pointed(builder, builder.add(start, half)) for half in along] for start in starts]
    sums = [[zeros(builder) for _ in row] for row in places]
    pairs = [pair for row, totals in zip(places, sums, strict=True) for pair in zip(row, totals, strict=True)]
    with builder.if_then(adds):
        for into, total in pairs:
            builder.store(builder.load(into, align=4), total)
    offsets = [builder.mul(row_a, WORD(r)) for r in range(rows)]
    with cgutils.for_range(builder, count, intp=WORD) as loop:
        term = builder.add(b, builder.mul(loop.index, step_b))
        others = [builder.load(pointed(builder, builder.add(term, half)), align=4) for half in halves]
        before(loop.index)
        at = builder.add(a, builder.mul(loop.index, term_a))
        for offset, totals in zip(offsets, sums, strict=True):
            number = spread(builder, builder.load(pointed(builder, builder.add(at, offset), FLOAT), align=4))
            for other, total in zip(others, totals, strict=True):
                builder.store(fused(builder, number, other, builder.load(total)), total)
    for into, total in pairs:
        builder.store(builder.load(total), into, align=4)


def _in_bytes(builder: Any, pair: Any) -> list[Any]:
    return [builder.mul(builder.extract_value(pair, i), WORD(4)) for i in range(2)]


_one, _two, _three, _four, _five, _six = (_tile(rows) for rows in range(1, 7))
_double_one, _double_two, _double_four, _double_eight = (_double_tile(rows) for rows in (1, 2, 4, 8))


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
def multiply_double(
    a: int, of_a: tuple[int, int], b: int, c: int, steps: tuple[int, int], rows: int, terms: int, adds: bool, apart: int
) -> None:
    """Write c [N, 2 W] = a [N, K] b [K, 2 W], or add it to c.

    For processors with registers for 18 vectors; the bits are those of `multiply`.

    Args:
        a: as of `multiply`.
        of_a: likewise.
        b: likewise.
        c: likewise.
        steps: likewise.
        rows: likewise.
        terms: likewise.
        adds: likewise.
        apart: distance of the second vector of a term of `b` from the first one, in numbers.
    """
    row = 0
    while row < rows:
        left, x, y = rows - row, a + 4 * row * of_a[0], c + 4 * row * steps[1]
        if left >= 8:
            _double_eight(x, of_a, b, y, steps, terms, adds, apart)
            row += 8
        elif left >= 4:
            _double_four(x, of_a, b, y, steps, terms, adds, apart)
            row += 4
        elif left >= 2:
            _double_two(x, of_a, b, y, steps, terms, adds, apart)
            row += 2
        else:
            _double_one(x, of_a, b, y, steps, terms, adds, apart)
            row += 1


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
