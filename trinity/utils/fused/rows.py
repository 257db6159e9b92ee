"""Rows of attention scores, turned into weights and their gradients.

The compiler makes no vectors of a largest number that a row has, since that would lose NaN. What a query does not see
is set to zero, whatever is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from trinity.utils.fused.vectors import (
    INDEX,
    INDICES,
    NOTHING,
    VECTOR,
    WIDTH,
    WORD,
    called,
    equal,
    pointed,
    spread,
)

COLUMNS = 4 * WIDTH
"""Scores of a row, at most."""
LOWEST = np.float32(-1e30)
"""Stands for the largest score where there is none yet."""
_POLYNOMIAL = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _weigh(columns: int) -> Any:
    """Return `weigh` for rows of so many columns."""

    @intrinsic
    def weigh_row(typingctx: Any, scores: Any, seen: Any, top: Any) -> Any:
        signature = types.UniTuple(types.float32, 2)(types.int64, types.int64, types.float32)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, count, before = arguments
            places, masks = _places(builder, address, columns), _masks(builder, count, columns)
            rows = [builder.load(place, align=4) for place in places]
            hidden = [builder.select(mask, row, equal(float(LOWEST))) for mask, row in zip(masks, rows, strict=True)]
            largest = spread(builder, before)
            for row in hidden:
                largest = _larger(builder, row, largest)
            highest = _reduced(builder, largest, _larger)
            largest, total = spread(builder, highest), equal(0.0)
            for place, mask, row in zip(places, masks, rows, strict=True):
                weight = builder.select(mask, _exponential(builder, builder.fsub(row, largest)), equal(0.0))
                builder.store(weight, place, align=4)
                total = builder.fadd(total, weight)
            parts = [highest, _reduced(builder, total, lambda builder, a, b: builder.fadd(a, b))]
            return context.make_tuple(builder, signature.return_type, parts)

        return signature, generate

    return weigh_row


def _slopes(columns: int) -> Any:
    """Return `slopes` for rows of so many columns."""

    @intrinsic
    def slope_row(typingctx: Any, scores: Any, products: Any, seen: Any, lse: Any, delta: Any) -> Any:
        signature = types.void(types.int64, types.int64, types.int64, types.float32, types.float32)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first, second, count, one, other = arguments
            one, other = spread(builder, one), spread(builder, other)
            places, others = (_places(builder, address, columns) for address in (first, second))
            for place, into, mask in zip(places, others, _masks(builder, count, columns), strict=True):
                score, product = builder.load(place, align=4), builder.load(into, align=4)
                weight = builder.select(mask, _exponential(builder, builder.fsub(score, one)), equal(0.0))
                slope = builder.fmul(weight, builder.fsub(product, other))
                builder.store(weight, place, align=4)
                builder.store(builder.select(mask, slope, equal(0.0)), into, align=4)
            return context.get_dummy_value()

        return signature, generate

    return slope_row


_weigh_one, _weigh_two, _weigh_three, _weigh_four = (_weigh(n * WIDTH) for n in range(1, 5))
_slopes_one, _slopes_two, _slopes_three, _slopes_four = (_slopes(n * WIDTH) for n in range(1, 5))


@njit(inline="always")
def weigh(scores: int, columns: int, seen: int, top: Any) -> Any:
    """Replace `columns` scores, at most `COLUMNS`, by e^(score - largest).

    Return the largest of `top` and the first `seen` scores, and the sum of their weights. The others become zero.
    """
    if columns <= WIDTH:
        return _weigh_one(scores, seen, top)
    if columns <= 2 * WIDTH:
        return _weigh_two(scores, seen, top)
    if columns <= 3 * WIDTH:
        return _weigh_three(scores, seen, top)
    return _weigh_four(scores, seen, top)


@njit(inline="always")
def slopes(scores: int, products: int, columns: int, seen: int, lse: Any, delta: Any) -> None:
    """Make weights of scores, and gradients of scores of those of weights.

    w = e^(score - lse), w * (product - delta) for the first `seen` of `columns` ones, zero for the others.
    """
    if columns <= WIDTH:
        _slopes_one(scores, products, seen, lse, delta)
    elif columns <= 2 * WIDTH:
        _slopes_two(scores, products, seen, lse, delta)
    elif columns <= 3 * WIDTH:
        _slopes_three(scores, products, seen, lse, delta)
    else:
        _slopes_four(scores, products, seen, lse, delta)


def _places(builder: Any, address: Any, columns: int) -> list[Any]:
    return [pointed(builder, builder.add(address, WORD(4 * start))) for start in range(0, columns, WIDTH)]


def _masks(builder: Any, count: Any, columns: int) -> list[Any]:
    """Return for each vector of a row which of its numbers are seen."""
    count = spread(builder, builder.trunc(count, INDEX), INDICES)
    lanes = [ir.Constant(INDICES, list(range(start, start + WIDTH))) for start in range(0, columns, WIDTH)]
    return [builder.icmp_signed("<", lane, count) for lane in lanes]


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """Return the larger numbers; of NaN and another, `b`."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _reduced(builder: Any, vector: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    half = WIDTH // 2
    while half:
        lanes = ir.Constant(INDICES, [(lane + half) % WIDTH for lane in range(WIDTH)])
        vector, half = combine(builder, vector, builder.shuffle_vector(vector, NOTHING, lanes)), half // 2
    return builder.extract_element(vector, INDEX(0))


def _exponential(builder: Any, x: Any) -> Any:
    """Return e^x; see `machine.exponential`. NaN stays NaN."""
    for bound, beyond in ((-87.0, "<"), (88.0, ">")):
        x = builder.select(builder.fcmp_ordered(beyond, x, equal(bound)), equal(bound), x)
    whole = called(builder, "floor", called(builder, "fma", x, equal(1.44269504), equal(0.5)))
    r = called(builder, "fma", whole, equal(-0.693359375), x)
    r = called(builder, "fma", whole, equal(2.12194440e-4), r)
    p = equal(1.9875691500e-4)
    for term in _POLYNOMIAL:
        p = called(builder, "fma", p, r, equal(term))
    p = called(builder, "fma", builder.fmul(p, r), r, builder.fadd(r, equal(1.0)))
    power = builder.add(builder.fptosi(whole, INDICES), ir.Constant(INDICES, [127] * WIDTH))
    return builder.fmul(p, builder.bitcast(builder.shl(power, ir.Constant(INDICES, [23] * WIDTH)), VECTOR))
