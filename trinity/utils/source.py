"""Where something was written, for messages."""

from __future__ import annotations

import functools
import inspect
from typing import Any

_FUNCTIONS = (type(lambda: None), functools.partial)


def is_function(given: Any) -> bool:
    """Return whether it is a plain function, and no object of a class."""
    return isinstance(given, _FUNCTIONS)


def named_with_file(given: Any) -> str:
    """Return the name of a function, or of an object's class, with its file."""
    inner = given.func if isinstance(given, functools.partial) else given
    written = inner if is_function(inner) else type(inner)
    try:
        file = inspect.getsourcefile(written)
    except TypeError:  # not written in Python
        file = None
    return getattr(written, "__name__", str(written)) + (f" ({file})" if file else "")
