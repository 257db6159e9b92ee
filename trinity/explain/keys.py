"""What a key of the configuration means, from where it is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from trinity.common.config import json_schema
from trinity.common.config.base import Section
from trinity.common.config.checking import unknown_key
from trinity.common.config.overrides import parse_path
from trinity.common.config.schema_index import annotation_at, facts_at, field_at, model_at
from trinity.common.config.tree import Path, Tree, dotted
from trinity.common.errors import ConfigError

RANGES = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def explained_key(name: str) -> dict[str, Any]:
    """Return what is declared of a key, in JSON types.

    Args:
        name: such as `algorithm.repeat_times`; items of a list are `[0]`, entries of a mapping any name.

    Raises:
        ConfigError: there is no such key (E1203, E1204, E1205); with the one that was meant.
    """
    path = parse_path(name) or (name,)
    field = field_at(path)
    if field is None:
        known = next(depth for depth in range(1, len(path) + 1) if annotation_at(path[:depth]) is None)
        found = unknown_key(Tree(_nested(path)), path[:known])
        way_out = f"; {found.suggestion}" if found.suggestion else ""
        raise ConfigError(f"{name!r} is no code and no key: {found.message}{way_out}", code=found.code)
    section, support = model_at(path), facts_at(path)[1].support
    declared = _declared(_schema(), model_at(path[:-1]), str(path[-1]))
    return {
        "key": dotted(path),
        "description": declared.get("description") or _summary(section),
        "default": declared.get("default"),
        "values": list(_values(declared)),
        "refused": "" if support is None else support.why or "this version has no other values",
        "served": [] if support is None else [declared.get("default"), *support.only],
        "source": declared.get("source", ""),
        "names_in_verl": declared["facts"]["verl_names"] if "facts" in declared else [],
        "keys": sorted(section.model_fields) if section is not None else [],
    }


def key_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield an explained key as text."""
    yield f"{found['key']}: {found['description']}"
    if found["keys"]:
        yield f"  keys: {', '.join(found['keys'])}"
    else:
        yield f"  values: {' or '.join(found['values']) or 'any'}"
        yield f"  default: {_shown(found['default'])}"
    if found["refused"]:
        yield f"  served: {', '.join(map(_shown, found['served']))}; others are refused: {found['refused']}"
    if found["names_in_verl"]:
        yield f"  in veRL: {', '.join(found['names_in_verl'])}"
    if found["source"]:
        yield f"  source: {found['source']}"


def _nested(path: Path) -> dict[str, Any]:
    """Return values in which the path is there, and null."""
    value: Any = None
    for part in reversed(path):
        value = [*[None] * part, value] if isinstance(part, int) else {part: value}
    return {} if value is None else dict(value)


def _summary(section: type[Section] | None) -> str:
    return "" if section is None else (section.__doc__ or "").split("\n")[0]


@cache
def _schema() -> dict[str, Any]:
    return json_schema()


def _declared(schema: dict[str, Any], model: type | None, name: str) -> dict[str, Any]:
    """Return what the JSON schema says of a field of a section."""
    title = model.__name__ if model is not None else ""
    section = schema["$defs"].get(title, schema)
    declared: dict[str, Any] = section["properties"][name]
    return declared


def _values(declared: Mapping[str, Any]) -> Iterator[str]:
    for each in declared.get("anyOf", [declared]):
        if "enum" in each:
            yield " | ".join(map(_shown, each["enum"]))
        elif "const" in each:
            yield _shown(each["const"])
        elif "type" in each:
            limits = [f"{sign} {each[name]}" for name, sign in RANGES.items() if name in each]
            yield f"{each['type']}{' ' + ' and '.join(limits) if limits else ''}"


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
