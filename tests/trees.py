"""Configurations of tests, as nested mappings."""

from __future__ import annotations

from typing import Any


def merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `part`; mappings are merged at every depth."""
    result = dict(base)
    for key, value in part.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
