"""Signatures and first lines of docstrings, as the pages show them."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from trinity.utils.declaration import Declared
from trinity.utils.translations import chinese_texts


def called(name: str, value: Any) -> str:
    """Return how a function or class is called: `process(exps)`; of anything else its name."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, enum.Enum)):
        return name
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):  # of a class that is not written in Python
        return name
    return f"{name}({', '.join(_parameters(parameters))})"


def summary(value: Any, language: str = "en") -> str:
    """Return the first line of the docstring of a function or class; "": it has none of its own."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return ""
    return in_language((inspect.getdoc(value) or "").split("\n")[0], language)


def in_language(line: str, language: str) -> str:
    """Return the first line of a docstring in `en` or `zh`, as it is where it has no translation."""
    if language != "zh":
        return line
    chinese = translations().get(line.removesuffix("."))
    return line if chinese is None else chinese + "。" * line.endswith(".")


def translations() -> Mapping[str, str]:
    """Return the Chinese of the first line of each public docstring, both without a full stop."""
    return chinese_texts("tools.reference", "docstrings_zh.json")


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what a plugin may define or call of a base class: documented public functions, and `__call__`."""
    own = [each for each in cls.__mro__ if each is not object and each is not Declared and each.__module__ != "abc"]
    found: dict[str, Any] = {}
    for each in reversed(own):
        found.update(vars(each))
    for name, value in found.items():
        function = (
            inspect.unwrap(getattr(value, "__func__", value)) if callable(value) or hasattr(value, "__func__") else None
        )
        if inspect.isfunction(function) and (name == "__call__" or not name.startswith("_")) and function.__doc__:
            yield name, function


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    is_marked = False
    for each in parameters:
        if each.name == "self" or each.name == "cls":
            continue
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            is_marked = True
            yield f"*{each.name}"
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            yield f"**{each.name}"
        else:
            if each.kind is inspect.Parameter.KEYWORD_ONLY and not is_marked:
                is_marked = True
                yield "*"
            yield each.name if each.default is inspect.Parameter.empty else f"{each.name}={_default(each.default)}"


def _default(value: Any) -> str:
    """Return a default as it is written; of an object what does not change from run to run."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    text = repr(value)
    return "..." if " at 0x" in text or len(text) > 40 else text
