"""A configuration as text: YAML, origins of values, JSON schema."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from trinity.common.config.config import Config
from trinity.common.config.overrides import parse_path
from trinity.common.config.problems import shown_value
from trinity.common.config.resolution import Derived
from trinity.common.config.tree import Path, Tree, dotted
from trinity.utils.log import REDACTED, is_secret_name, redact

_INTERPOLATION = re.compile(r"(\\*)\$\{")
NUMBER_TYPES = frozenset({"dtype", "param_dtype"})


def dump_config(
    config: Config, references: Mapping[str, str] | None = None, *, addresses: Mapping[str, str] | None = None
) -> str:
    """Return a configuration as loadable YAML with secrets redacted.

    Args:
        config: the configuration.
        references: what stands in place of some secrets, by key: `${oc.env:NAME}`, as it was written.
        addresses: what stands in place of some values: of local copies, where they are from.
    """
    tree = Tree(_literal(_with_addresses(plain_values(config), addresses or {})))
    for name, text in (references or {}).items():
        tree.put(parse_path(name) or (), text)
    return yaml.safe_dump(tree.values, sort_keys=False, allow_unicode=True, width=120)


def _with_addresses(value: Any, addresses: Mapping[str, str]) -> Any:
    """Return a nested value with addresses in place of local copies."""
    if isinstance(value, dict):
        return {name: _with_addresses(inner, addresses) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_addresses(inner, addresses) for inner in value]
    return addresses.get(value, value) if isinstance(value, str) else value


def _literal(value: Any) -> Any:
    """Return a nested value whose texts are read as no interpolations."""
    if isinstance(value, dict):
        return {name: _literal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_literal(inner) for inner in value]
    return _INTERPOLATION.sub(r"\1\1\\${", value) if isinstance(value, str) else value


def unwritten_types(config: Config) -> list[str]:
    """Return the keys of data types that nobody wrote.

    A configuration that was dumped has them like written ones.
    """
    return sorted(_unset(config.trainer.trainer_config, "trainer.trainer_config", NUMBER_TYPES))


def _unset(section: BaseModel, prefix: str, names: Collection[str]) -> Iterator[str]:
    for name in type(section).model_fields:
        value, key = vars(section)[name], f"{prefix}.{name}"
        if isinstance(value, BaseModel):
            yield from _unset(value, key, names)
        elif name in names and name not in section.model_fields_set:
            yield key


def plain_values(config: Config) -> dict[str, Any]:
    """Return a configuration as nested plain values, secrets redacted."""
    values: dict[str, Any] = redacted(config.model_dump(mode="json", exclude={"stages"}))
    return values


def redacted(value: Any, name: str = "") -> Any:
    """Return a nested value without secret keys and passwords in URLs."""
    if isinstance(value, Mapping):
        return {key: redacted(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, name) for inner in value]
    if is_secret_name(name) and value not in (None, "", "EMPTY") and not isinstance(value, bool):
        return REDACTED
    return redact(value) if isinstance(value, str) else value


def origins(config: Config, tree: Tree, derived: list[Derived]) -> list[dict[str, Any]]:
    """Return every value with its origin: `key`, `value`, `origin`.

    The origin is the chain of places (a stage's line before the global line that it overrides), the reason of a
    derived value, or `default`.
    """
    reasons = {item.key: item.reason for item in derived}
    rows = []
    for path, value in leaves(config.model_dump(mode="json", exclude={"stages"})):
        key = dotted(path)
        chain = [origin.describe() for origin in tree.origins.get(path, ())]
        reason = _reason(reasons, path)
        if reason is not None:
            chain.insert(0, f"derived: {reason}")
        rows.append({"key": key, "value": shown_value(key, value), "origin": chain or ["default"]})
    return rows


def _reason(reasons: Mapping[str, str], path: Path) -> str | None:
    while path:
        if dotted(path) in reasons:
            return reasons[dotted(path)]
        path = path[:-1]
    return None


def leaves(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Return paths and plain values; a list of scalars is one value."""
    if isinstance(value, Mapping) and value:
        return [leaf for name, inner in value.items() for leaf in leaves(inner, (*path, name))]
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, (*path, index))]
    return [(path, value)]


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the configuration file, stages included."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Trinity configuration"
    return schema
