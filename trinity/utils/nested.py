"""Lists and mappings in the columns of a dataset, as they were written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def parsed(text: str) -> Any:
    """Return the list or mapping in a JSON text.

    None for an empty text or null; any other text is returned unchanged.
    """
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text
    return value if value is None or isinstance(value, list | Mapping) else text


def without_null(value: Any, *, kept: str = "") -> Any:
    """Return `value` without null entries at any depth.

    The outer mappings keep their entry `kept`, even if it is null.

    Arrow gives all mappings of a column the same keys and fills them up with null.
    """
    if isinstance(value, Mapping):
        return {key: without_null(inner) for key, inner in value.items() if inner is not None or key == kept}
    return [without_null(inner, kept=kept) for inner in value] if isinstance(value, list) else value


def as_written(value: Any, *, kept: str = "") -> Any:
    """Return a column's value.

    A JSON text becomes what it holds; lists and mappings lose nulls that were filled in.
    """
    if isinstance(value, str):
        return parsed(value)
    return without_null(value, kept=kept) if isinstance(value, list | Mapping) else value
