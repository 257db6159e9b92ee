"""Vectors of float32 in the compiler's own language.

Numba leaves the choice of vectors to the compiler, which makes none of a loop whose end varies and keeps no tile of
sums in registers; kernels whose time this would double write them out.

Dimension key: W = `WIDTH`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

WIDTH = 16
"""Numbers of a vector: two registers with AVX2, one with AVX-512."""
FLOAT, INDEX, WORD = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR, INDICES = (ir.VectorType(kind, WIDTH) for kind in (FLOAT, INDEX))
LINE = 64
"""Bytes of a line of memory."""
NOTHING = ir.Constant(VECTOR, ir.Undefined)


def equal(number: float) -> ir.Constant:
    """Return a vector [W] of a constant."""
    return ir.Constant(VECTOR, [number] * WIDTH)


def spread(builder: Any, number: Any, vector: Any = VECTOR) -> Any:
    """Return a vector [W] of equal numbers."""
    nothing = ir.Constant(vector, ir.Undefined)
    lanes = ir.Constant(INDICES, [0] * WIDTH)
    return builder.shuffle_vector(builder.insert_element(nothing, number, INDEX(0)), nothing, lanes)


def called(builder: Any, name: str, *arguments: Any) -> Any:
    """Return what the compiler's function `name` gives for vectors [W]."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f32")
    return builder.call(function, list(arguments))


def fused(builder: Any, one: Any, other: Any, total: Any) -> Any:
    """Return one * other + total, rounded once."""
    return called(builder, "fma", one, other, total)


def pointed(builder: Any, address: Any, kind: Any = VECTOR) -> Any:
    """Return the address of a number or a vector as a pointer to it."""
    return builder.inttoptr(address, kind.as_pointer())


def zeros(builder: Any) -> Any:
    """Return where a vector of sums is kept, which are zero."""
    total = cgutils.alloca_once(builder, VECTOR)
    builder.store(equal(0.0), total)
    return total


def ask(builder: Any, address: Any) -> None:
    """Ask for a line of memory that is read later, so that it is on its way."""
    byte = ir.IntType(8)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), INDEX, INDEX, INDEX])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [pointed(builder, address, byte), INDEX(0), INDEX(2), INDEX(1)])
