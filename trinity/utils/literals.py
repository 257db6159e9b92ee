"""Values that a source states without being run.

They are literals and simple expressions of them.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitOr: operator.or_,
}
_MAKERS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "dict.fromkeys": dict.fromkeys,
    "float": float,
    "frozenset": frozenset,
    "list": list,
    "set": set,
    "tuple": tuple,
}
_NAMES: dict[str, Any] = {"math.inf": math.inf, "math.nan": math.nan}
MAX_ITEMS = 10_000


class NotLiteral(Exception):
    """An expression whose value only a run could tell.

    Args:
        node: the expression.
    """

    def __init__(self, node: ast.AST) -> None:
        super().__init__(ast.unparse(node))
        self.line: int = getattr(node, "lineno", 1)


class Reader:
    """Reads expressions.

    Args:
        names: the expressions that names of the module stand for.
        call: what the call of a function returns that is not one of Python's; raises `NotLiteral` too.
    """

    def __init__(self, names: Mapping[str, ast.expr], call: Callable[[ast.Call], Any]) -> None:
        self.names = names
        self.call = call

    def value(self, node: ast.expr, local: Mapping[str, Any] | None = None) -> Any:
        """Return the value of an expression.

        `local` holds the values of the function's names.

        Raises:
            NotLiteral: only a run could tell.
        """
        local = local or {}
        try:
            return self._value(node, local)
        except (TypeError, ValueError, ArithmeticError, KeyError, RecursionError) as error:
            raise NotLiteral(node) from error

    def _value(self, node: ast.expr, local: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(node, local)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            items = [self._value(item, local) for item in node.elts]
            return items if isinstance(node, ast.List) else (tuple if isinstance(node, ast.Tuple) else set)(items)
        if isinstance(node, ast.Dict):
            found: dict[Any, Any] = {}
            for key, item in zip(node.keys, node.values, strict=True):
                inner = self._value(item, local)
                found |= inner if key is None else {self._value(key, local): inner}
            return found
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand, local)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._joined(node, local)
        if isinstance(node, ast.JoinedStr):
            return "".join(str(self._value(part, local)) for part in node.values)
        if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
            return self._value(node.value, local)
        if isinstance(node, ast.Call):
            return self._made(node, local)
        raise NotLiteral(node)

    def _named(self, node: ast.Name | ast.Attribute, local: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Name) and node.id in local:
            return local[node.id]
        if isinstance(node, ast.Name) and node.id in self.names:
            return self._value(self.names[node.id], {})
        if ast.unparse(node) in _NAMES:
            return _NAMES[ast.unparse(node)]
        raise NotLiteral(node)

    def _joined(self, node: ast.BinOp, local: Mapping[str, Any]) -> Any:
        left, right = self._value(node.left, local), self._value(node.right, local)
        if isinstance(node.op, ast.Mult) and not all(isinstance(side, int | float) for side in (left, right)):
            raise NotLiteral(node)  # a long text or list: nothing that a declaration says
        return _BINARY[type(node.op)](left, right)

    def _made(self, node: ast.Call, local: Mapping[str, Any]) -> Any:
        name = ast.unparse(node.func)
        if name not in _MAKERS:
            return self.call(node)
        given = [self._value(item, local) for item in node.args]
        found = {word.arg: self._value(word.value, local) for word in node.keywords if word.arg is not None}
        for word in node.keywords:
            found |= self._value(word.value, local) if word.arg is None else {}
        return _MAKERS[name](*given, **found)


def returned(function: ast.FunctionDef, reader: Reader) -> Any:
    """Return what a function without arguments returns.

    That is a value, or one built line by line.

    Raises:
        NotLiteral: only a run could tell.
    """
    local: dict[str, Any] = {}
    for line in function.body:
        if isinstance(line, ast.Return) and line.value is not None:
            return reader.value(line.value, local)
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            continue
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
            _update(line.value, reader, local)
        elif isinstance(line, ast.AnnAssign) and line.value is not None:
            _assign(line.target, line.value, reader, local)
        elif isinstance(line, ast.Assign) and len(line.targets) == 1:
            _assign(line.targets[0], line.value, reader, local)
        else:
            raise NotLiteral(line)
    raise NotLiteral(function)


def _assign(target: ast.expr, value: ast.expr, reader: Reader, local: dict[str, Any]) -> None:
    """Follow `name = value` and `name[key] = value`."""
    if isinstance(target, ast.Name):
        local[target.id] = reader.value(value, local)
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id in local:
        name, key = target.value.id, reader.value(target.slice, local)
        local[name] = local[name] | {key: reader.value(value, local)}
    else:
        raise NotLiteral(target)


def _update(call: ast.Call, reader: Reader, local: dict[str, Any]) -> None:
    """Follow `name.update(values)`."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="update"), args=[given], keywords=[]):
            if name not in local:
                raise NotLiteral(call)
            local[name] = local[name] | reader.value(given, local)
        case _:
            raise NotLiteral(call)
