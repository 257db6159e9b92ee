"""The check of argument types and tensor shapes: of the first calls of each function in a test.

One check takes a quarter of a millisecond, which is longer than what most functions do with the tensors of a test. With
every call checked, half of the time of the trainer's tests was spent on this. Later calls of a test come from where the
first ones came from, with other numbers.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import jaxtyping

CALLS = 3
"""Calls of a function that are checked in a test."""
_checked: Counter[CodeType] = Counter()


def install(packages: list[str], checker: str) -> None:
    """Check the packages, which must not have been imported yet, with the checker that an expression gives."""
    jaxtyping.jaxtyped = _sparing(jaxtyping.jaxtyped)  # the decorator that the hook writes into the modules
    jaxtyping.install_import_hook(packages, checker)


def begin_test() -> None:
    """Let the next calls be checked."""
    _checked.clear()


def _sparing(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    def decorator(**how: Any) -> Callable[[Any], Any]:
        def decorate(thing: Any) -> Any:
            return _spared(thing, jaxtyped(**how)) if isinstance(thing, FunctionType) else jaxtyped(**how)(thing)

        return decorate

    return decorator


def _spared(function: FunctionType, decorate: Callable[[FunctionType], Callable[..., Any]]) -> Callable[..., Any]:
    code, checked = function.__code__, None
    if _checked[code] >= CALLS:  # a function inside of another one is made at each call of that
        return function

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if _checked[code] >= CALLS:
            return function(*args, **kwargs)
        _checked[code] += 1
        checked = checked or decorate(function)
        return checked(*args, **kwargs)

    return called
