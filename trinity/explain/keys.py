"""What a key of the configuration means, from where it is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from trinity.common.config import json_schema
from trinity.common.config.base import Section
from trinity.common.config.checking import unknown_key
from trinity.common.config.help_texts import field_help, field_source
from trinity.common.config.overrides import parse_path
from trinity.common.config.schema_index import annotation_at, facts_at, field_at, model_at
from trinity.common.config.tree import Path, Tree, dotted
from trinity.common.errors import ConfigError
from trinity.summary.words import Text

RANGES = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}

WORDS = {
    "keys": Text("keys: ", "配置项："),
    "values": Text("values: ", "取值："),
    "any": Text("any", "任意"),
    "or": Text(" or ", " 或 "),
    "default": Text("default: ", "默认值："),
    "served": Text("served: {served}; others are refused: {why}", "支持：{served}；其他值会被拒绝：{why}"),
    "none_yet": Text("this version has no other values", "此版本没有其他值"),
    "in_verl": Text("in veRL: ", "在 veRL 中："),
    "source": Text("source: ", "出处："),
    "colon": Text(": ", "："),
}
"""What is said around an explained key."""


def explained_key(name: str, language: str = "en") -> dict[str, Any]:
    """Return what is declared of a key, in JSON types.

    Args:
        name: such as `algorithm.repeat_times`; items of a list are `[0]`, entries of a mapping any name.
        language: of its help text, `en` or `zh`; English where it has none.

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
        "description": field_help(field, language) or _summary(section),
        "default": declared.get("default"),
        "values": list(_values(declared)),
        "refused": "" if support is None else support.why or _said("none_yet", language),
        "served": [] if support is None else [declared.get("default"), *support.only],
        "source": field_source(field, language),
        "names_in_verl": declared["facts"]["verl_names"] if "facts" in declared else [],
        "keys": sorted(section.model_fields) if section is not None else [],
    }


def key_lines(found: Mapping[str, Any], language: str = "en") -> Iterator[str]:
    """Yield an explained key as text."""
    yield f"{found['key']}{_said('colon', language)}{found['description']}"
    if found["keys"]:
        yield f"  {_said('keys', language)}{', '.join(found['keys'])}"
    else:
        values = _said("or", language).join(found["values"])
        yield f"  {_said('values', language)}{values or _said('any', language)}"
        yield f"  {_said('default', language)}{_shown(found['default'])}"
    if found["refused"]:
        served = ", ".join(map(_shown, found["served"]))
        yield f"  {_said('served', language).format(served=served, why=found['refused'])}"
    if found["names_in_verl"]:
        yield f"  {_said('in_verl', language)}{', '.join(found['names_in_verl'])}"
    if found["source"]:
        yield f"  {_said('source', language)}{found['source']}"


def _said(name: str, language: str) -> str:
    return WORDS[name].zh if language == "zh" else WORDS[name].en


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
