"""Products of small matrices whose sums stay in registers.

A tile is some rows of a result times `WIDTH` columns. The vectors are written out in the compiler's own language, since
it would not keep a tile in registers otherwise. All numbers are float32; a result's sum is taken in the order of the
terms, so its bits depend on no other row.

Dimension key: R = rows of a tile, K = terms of a sum, N = rows, W = `WIDTH`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 16
"""Columns of a tile: two vectors with AVX2, one with AVX-512."""
_FLOAT, _WORD, _INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)


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
    scalar, vector = _FLOAT.as_pointer(), _VECTOR.as_pointer()
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(rows)]
    places = [builder.inttoptr(builder.add(c, builder.mul(step_c, _WORD(r))), vector) for r in range(rows)]
    with builder.if_else(adds) as (then, otherwise):
        with then:
            for place, total in zip(places, sums, strict=True):
                builder.store(builder.load(place, align=4), total)
        with otherwise:
            for total in sums:
                builder.store(ir.Constant(_VECTOR, None), total)
    offsets = [builder.mul(row_a, _WORD(r)) for r in range(rows)]
    with cgutils.for_range(builder, count, intp=_WORD) as loop:
        other = builder.load(builder.inttoptr(builder.add(b, builder.mul(loop.index, step_b)), vector), align=4)
        _prefetch(builder, ahead, loop.index)
        at = builder.add(a, builder.mul(loop.index, term_a))
        for offset, total in zip(offsets, sums, strict=True):
            number = builder.load(builder.inttoptr(builder.add(at, offset), scalar), align=4)
            builder.store(_fused(builder, number, other, builder.load(total)), total)
    for place, total in zip(places, sums, strict=True):
        builder.store(builder.load(total), place, align=4)
    return context.get_dummy_value()


def _in_bytes(builder: Any, pair: Any) -> list[Any]:
    return [builder.mul(builder.extract_value(pair, i), _WORD(4)) for i in range(2)]


def _fused(builder: Any, number: Any, other: Any, total: Any) -> Any:
    """Return number * other + total."""
    name, kind = f"llvm.fma.v{WIDTH}f32", ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    nothing, lanes = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_INDEX, WIDTH), [0] * WIDTH)
    spread = builder.shuffle_vector(builder.insert_element(nothing, number, _INDEX(0)), nothing, lanes)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [spread, other, total])


def _prefetch(builder: Any, ahead: Any, index: Any) -> None:
    """Ask for memory that is read later.

    It is then on its way during the products of this tile.
    """
    first, step = (builder.extract_value(ahead, i) for i in range(2))
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INDEX, _INDEX, _INDEX])
    place = builder.inttoptr(builder.add(first, builder.mul(index, step)), byte)
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(ask, [place, _INDEX(0), _INDEX(2), _INDEX(1)])


_one, _two, _three, _four, _five, _six = (_tile(rows) for rows in range(1, 7))
NOTHING_AHEAD = (0, 0)
LINE = 64


@njit(nogil=True, error_model="numpy", cache=True)
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


@njit(nogil=True, error_model="numpy", cache=True)
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
        ahead = (following + number * step * terms, step)
        _some(a + 4 * row * of_a[0], of_a, b, c + 4 * row * steps[1], steps, count, terms, adds, ahead)
        row += count
