"""Exact, bounded arithmetic on text that a model wrote.

The text is parsed, never evaluated by Python: only numbers, `+ - * /` and parentheses exist, so that a power
tower, a name or a call cannot even be written.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from trinity.utils.syntax import parsed_expression

MAX_CHARS = 512
MAX_NODES = 128
MAX_DIGITS = 24

_ALLOWED = re.compile(r"[0-9+\-*/(). \t\n]*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+", re.ASCII)
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ArithmeticRefused(ValueError):
    """The text is not arithmetic of four operations, or exceeds a bound.

    The message says which.
    """


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_CHARS:
        raise ArithmeticRefused(f"longer than {MAX_CHARS} characters")
    if not _ALLOWED.fullmatch(text) or "**" in text or "//" in text:
        raise ArithmeticRefused("only numbers, + - * / and parentheses are allowed")
    if any(len(number) > MAX_DIGITS for number in _NUMBER.findall(text)):
        raise ArithmeticRefused(f"a number of more than {MAX_DIGITS} digits")
    # Python refuses leading zeros; in an answer they mean nothing.
    plain = re.sub(r"(?<![0-9.])0+(?=[0-9])", "", text, flags=re.ASCII)
    try:
        return parsed_expression(plain.replace("\n", " ").strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ArithmeticRefused(f"not an expression: {type(error).__name__}") from error


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _value(node.operand)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    raise ArithmeticRefused(f"{type(node).__name__} is not allowed")


def evaluate(text: str) -> Fraction:
    """Return the exact value of an arithmetic expression.

    It may have numbers, `+ - * /` and parentheses.

    Raises:
        ArithmeticRefused: not such an expression, longer than `MAX_CHARS`, more than `MAX_NODES` parts, a
            number longer than `MAX_DIGITS`, or a division by zero.
    """
    tree = _parse(text)
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise ArithmeticRefused(f"more than {MAX_NODES} parts")
    try:
        return _value(tree)
    except ZeroDivisionError as error:
        raise ArithmeticRefused("division by zero") from error


def numbers_in(text: str) -> list[Fraction]:
    """Return the numbers written in `text`, without their signs, in order.

    At most `MAX_CHARS` characters are read.
    """
    return [Fraction(item.rstrip(".")) for item in _NUMBER.findall(text[:MAX_CHARS]) if len(item) <= MAX_DIGITS]
