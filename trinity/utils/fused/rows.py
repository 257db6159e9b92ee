"""Rows of attention scores, turned into weights and their gradients.

Written out in the compiler's own language, as `tile` is: it makes no vectors of a largest number that a row has, since
that would lose NaN, nor of a loop whose end varies. What a query does not see is set to zero, whatever is there.

Dimension key: W = `COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trinity.utils.fused.tile import WIDTH

COLUMNS = 64
"""Scores of a row: four vectors with AVX-512."""
_FLOAT, _WORD, _INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR, _WORDS, _INDICES = (ir.VectorType(kind, WIDTH) for kind in (_FLOAT, _WORD, _INDEX))
_LOWEST = -1e30
_POLYNOMIAL = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


@intrinsic
def weigh(typingctx: Any, scores: Any, seen: Any, top: Any) -> Any:
    """Replace scores [W] by e^(score - largest).

    Return the largest of `top` and the first `seen` scores, and the sum of their weights. The others become zero.
    """
    signature = types.UniTuple(types.float32, 2)(types.int64, types.int64, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, count, before = arguments
        places, masks = _places(builder, address), _masks(builder, count)
        rows = [builder.load(place, align=4) for place in places]
        hidden = [builder.select(mask, row, _all(_LOWEST)) for mask, row in zip(masks, rows, strict=True)]
        largest = _spread(builder, before)
        for row in hidden:
            largest = _larger(builder, row, largest)
        highest = _reduced(builder, largest, _larger)
        largest, total = _spread(builder, highest), _all(0.0)
        for place, mask, row in zip(places, masks, rows, strict=True):
            weight = builder.select(mask, _exponential(builder, builder.fsub(row, largest)), _all(0.0))
            builder.store(weight, place, align=4)
            total = builder.fadd(total, weight)
        parts = [highest, _reduced(builder, total, lambda builder, a, b: builder.fadd(a, b))]
        return context.make_tuple(builder, signature.return_type, parts)

    return signature, generate


@intrinsic
def slopes(typingctx: Any, scores: Any, products: Any, seen: Any, lse: Any, delta: Any) -> Any:
    """Make weights of scores [W], and gradients of scores of those of weights.

    w = e^(score - lse), w * (product - delta) for the first `seen` ones, zero for the others.
    """
    signature = types.void(types.int64, types.int64, types.int64, types.float32, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second, count, one, other = arguments
        one, other = _spread(builder, one), _spread(builder, other)
        masks = _masks(builder, count)
        for place, into, mask in zip(_places(builder, first), _places(builder, second), masks, strict=True):
            score, product = builder.load(place, align=4), builder.load(into, align=4)
            weight = builder.select(mask, _exponential(builder, builder.fsub(score, one)), _all(0.0))
            slope = builder.fmul(weight, builder.fsub(product, other))
            builder.store(weight, place, align=4)
            builder.store(builder.select(mask, slope, _all(0.0)), into, align=4)
        return context.get_dummy_value()

    return signature, generate


def _all(number: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [number] * WIDTH)


def _spread(builder: Any, number: Any, vector: Any = _VECTOR) -> Any:
    """Return a vector of equal numbers."""
    nothing = ir.Constant(vector, ir.Undefined)
    lanes = ir.Constant(_INDICES, [0] * WIDTH)
    return builder.shuffle_vector(builder.insert_element(nothing, number, _INDEX(0)), nothing, lanes)


def _places(builder: Any, address: Any) -> list[Any]:
    return [
        builder.inttoptr(builder.add(address, _WORD(4 * start)), _VECTOR.as_pointer())
        for start in range(0, COLUMNS, WIDTH)
    ]


def _masks(builder: Any, count: Any) -> list[Any]:
    """Return for each vector of a row which of its numbers are seen."""
    count = _spread(builder, count, _WORDS)
    lanes = [ir.Constant(_WORDS, list(range(start, start + WIDTH))) for start in range(0, COLUMNS, WIDTH)]
    return [builder.icmp_signed("<", lane, count) for lane in lanes]


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """Return the larger numbers; of NaN and another, `b`."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _reduced(builder: Any, vector: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    nothing, half = ir.Constant(_VECTOR, ir.Undefined), WIDTH // 2
    while half:
        lanes = ir.Constant(_INDICES, [(lane + half) % WIDTH for lane in range(WIDTH)])
        vector, half = combine(builder, vector, builder.shuffle_vector(vector, nothing, lanes)), half // 2
    return builder.extract_element(vector, _INDEX(0))


def _called(builder: Any, name: str, *arguments: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f32")
    return builder.call(function, list(arguments))


def _exponential(builder: Any, x: Any) -> Any:
    """Return e^x; see `machine.exponential`. NaN stays NaN."""
    for bound, beyond in ((-87.0, "<"), (88.0, ">")):
        x = builder.select(builder.fcmp_ordered(beyond, x, _all(bound)), _all(bound), x)
    whole = _called(builder, "floor", _called(builder, "fma", x, _all(1.44269504), _all(0.5)))
    r = _called(builder, "fma", whole, _all(-0.693359375), x)
    r = _called(builder, "fma", whole, _all(2.12194440e-4), r)
    p = _all(1.9875691500e-4)
    for term in _POLYNOMIAL:
        p = _called(builder, "fma", p, r, _all(term))
    p = _called(builder, "fma", builder.fmul(p, r), r, builder.fadd(r, _all(1.0)))
    power = builder.add(builder.fptosi(whole, _INDICES), ir.Constant(_INDICES, [127] * WIDTH))
    return builder.fmul(p, builder.bitcast(builder.shl(power, ir.Constant(_INDICES, [23] * WIDTH)), _VECTOR))
