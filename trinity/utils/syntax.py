"""Python source read as a syntax tree, in any thread."""

from __future__ import annotations

import ast
import threading

TRIES = 8
_ONE = threading.Lock()


def parsed(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Return the tree of a module, in any thread.

    Python 3.11 does not let two threads parse at once: one counter of the interpreter says how deep its parsers are. A
    thread that is switched from in the middle, as by a garbage collection, finds the other's count, and fails: "AST
    constructor recursion depth mismatch". Calls of this function wait for each other; one that meets a parser elsewhere
    is made again.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the source is none.
        SystemError: eight attempts met another parser.
    """
    tree = _parsed(source, filename, mode="exec")
    assert isinstance(tree, ast.Module), "a module is parsed as one"
    return tree


def parsed_expression(source: str) -> ast.expr:
    """Return the tree of one expression.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError, SystemError: as of `parsed`.
    """
    tree = _parsed(source, "<unknown>", mode="eval")
    assert isinstance(tree, ast.Expression), "an expression is parsed as one"
    return tree.body


def _parsed(source: str | bytes, filename: str, *, mode: str) -> ast.AST:
    for _ in range(TRIES - 1):
        try:
            return _parsed_once(source, filename, mode=mode)
        except SystemError:
            continue
    return _parsed_once(source, filename, mode=mode)


def _parsed_once(source: str | bytes, filename: str, *, mode: str) -> ast.AST:
    with _ONE:
        return ast.parse(source, filename, mode)  # noqa: TID251 - the one place
