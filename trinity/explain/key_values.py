"""The keys of the configuration, and the values that can be listed."""

from __future__ import annotations

from trinity.catalogue import BUILT_IN
from trinity.common.config.config import Config
from trinity.common.config.dotted import registry_of
from trinity.common.config.schema_index import fields_of, holds_section, values_of


def key_values() -> dict[str, list[str]]:
    """Return the values of every key as `--set` takes them; empty: any.

    A key is dotted, items of a list are `*`. Sections are not among them, nor are the keys of `stages`, which are those
    of the file.
    """
    found: dict[str, list[str]] = {}
    for path, _ in fields_of(Config):
        if path[0] != "stages" and not holds_section(path):
            registry = registry_of(path)
            values = BUILT_IN.names(registry) if registry else [_written(value) for value in values_of(path)]
            found[".".join(map(str, path))] = values
    return found


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
