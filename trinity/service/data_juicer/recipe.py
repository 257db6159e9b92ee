"""The operators that a configuration or a recipe of Data-Juicer names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trinity.common.errors import ConfigError
from trinity.utils.log import get_logger

logger = get_logger("service")

MAX_RECIPE_BYTES = 1024 * 1024
# Other keys of a recipe say where rows come from and go to, which the run does.
_READ = frozenset({"process", "np", "project_name", "text_keys"})


@dataclass(frozen=True)
class Recipe:
    """Operators in their order.

    Attributes:
        operators: name and arguments of each.
        num_process: processes that share the rows of an operator.
        text_key: column that operators read where they name none.
        seeded: addresses of models that take a seed.
    """

    operators: tuple[tuple[str, dict[str, Any]], ...]
    num_process: int = 4
    text_key: str | None = None
    seeded: frozenset[str] = frozenset()


def read_recipe(
    *,
    key: str,
    config_path: str | None = None,
    operators: Sequence[Any] = (),
    num_process: int = 4,
    text_key: str | None = None,
) -> Recipe:
    """Return the recipe of a file or of a list.

    Args:
        key: of the section, for messages.
        config_path: a file of Data-Juicer on this machine.
        operators: `{name: arguments}`, `{name: ..., args: ...}` or objects with `name` and `args`.
        num_process: processes that share the rows; a file may say otherwise by `np`.
        text_key: column that operators read where they name none.

    Raises:
        ConfigError: both are given or none (E1930), the file cannot be read (E1931), or an entry has not that form
            (E1932).
    """
    if bool(config_path) == bool(operators):
        got = "both" if operators else "none"
        raise ConfigError(f"`{key}` must have either config_path or operators, got {got}", code="E1930")
    if not config_path:
        found = tuple(_operator(entry, f"{key}.operators[{i}]") for i, entry in enumerate(operators))
        return Recipe(found, num_process, text_key)
    values = _file(config_path, key=f"{key}.config_path")
    found = tuple(_operator(entry, f"process[{i}] of {config_path}") for i, entry in enumerate(values["process"]))
    idle = sorted(map(str, values.keys() - _READ))
    if idle:
        logger.warning("%s: the keys %s have no effect here: the run gives and takes the rows", config_path, idle)
    texts = values.get("text_keys") or text_key
    return Recipe(found, int(values.get("np") or num_process), texts[0] if isinstance(texts, list) else texts)


def _file(path: str, *, key: str) -> dict[str, Any]:
    place = Path(path).expanduser()
    try:
        if "://" in path or not place.is_file():
            raise ConfigError(f"`{key}` must be a file on this machine, got {path}", code="E1931")
        if place.stat().st_size > MAX_RECIPE_BYTES:
            raise ConfigError(f"`{key}` may have {MAX_RECIPE_BYTES} bytes: {path}", code="E1931")
        values = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"`{key}`: {path} cannot be read: {error}", code="E1931") from error
    if not isinstance(values, dict) or not isinstance(values.get("process"), list) or not values["process"]:
        raise ConfigError(f"`{key}`: {path} has no list `process` of operators", code="E1931")
    return values


def _operator(entry: Any, place: str) -> tuple[str, dict[str, Any]]:
    if hasattr(entry, "name") and hasattr(entry, "args"):
        entry = {"name": entry.name, "args": entry.args}
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry.keys() <= {"name", "args"}:
        name, args = entry["name"], entry.get("args")
    elif isinstance(entry, Mapping) and len(entry) == 1:
        ((name, args),) = entry.items()
    else:
        raise ConfigError(f"{place} must be {{name: arguments}}, got {str(entry)[:200]}", code="E1932")
    if not isinstance(name, str) or not isinstance(args or {}, Mapping):
        raise ConfigError(f"{place} must be {{name: arguments}}, got {str(entry)[:200]}", code="E1932")
    return name, dict(args or {})
