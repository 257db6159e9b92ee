"""What a program gives in place of a YAML file and of `--set`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import yaml

from trinity.common.config.problems import ConfigErrors, Finding
from trinity.common.config.reading import IMPLICIT_RESOLVERS, parse_text, read_file
from trinity.common.config.tree import Tree

ConfigSource = str | Path | Mapping[str, Any]
"""A YAML file, or the values that would stand in one."""

Overrides = Mapping[str, Any] | Sequence[str]
"""`a.b=c` texts, or values by key; a key may be dotted, and values may be nested."""

GIVEN = "<given values>"
"""Stands for the file in problems of values that a program gave."""


class _Dumper(yaml.SafeDumper):
    """Writes plain values so that they are read as the same."""

    yaml_implicit_resolvers = IMPLICIT_RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        """Write a list again where it stands again."""
        return True


def read_source(source: ConfigSource) -> Tree:
    """Return the values of a file or of a program with their places.

    Raises:
        ConfigErrors: the file cannot be read, or the values are not those of a YAML file.
    """
    if isinstance(source, Mapping):
        return parse_text(yaml_text(source), GIVEN)
    return read_file(Path(source))


def override_texts(overrides: Overrides | None) -> tuple[str, ...]:
    """Return overrides as texts of `--set`, in their order.

    A mapping within a mapping stands for its own entries; `a={...}` as text replaces a whole mapping.

    Raises:
        ConfigErrors: a key is no text (E1012), or a value is not plain (E1011).
    """
    if isinstance(overrides, Mapping):
        return tuple(f"{key}={yaml_text(value, key, is_line=True)}" for key, value in _leaves(overrides, ""))
    if isinstance(overrides, str):
        return (overrides,)
    return tuple(overrides or ())


def _leaves(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if not isinstance(name, str):
            message = f"`{above or 'overrides'}`: a key must be text such as `a.b` or `stages[1].a.b`, got {name!r}"
            raise ConfigErrors([Finding("E1012", above, message)])
        key = f"{above}.{name}" if above else name
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, key)
        else:
            yield key, value


def _plain(value: Any) -> Any:
    """Return a value in the types of YAML, as far as that is clear."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, PurePath) else value


def yaml_text(value: Any, key: str = "", *, is_line: bool = False) -> str:
    """Return a plain value as YAML text; a path is text, a tuple is a list."""
    try:
        text = yaml.dump(
            _plain(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=is_line, width=2**30
        )
    except (yaml.representer.RepresenterError, RecursionError) as error:
        kind = "a value within itself" if isinstance(error, RecursionError) else type(error.args[-1]).__name__
        message = f"`{key or 'the configuration'}` has {kind}, which YAML cannot hold"
        hint = "give texts, numbers, booleans, None, lists and mappings"
        raise ConfigErrors([Finding("E1011", key, message, suggestion=hint)]) from error
    return text.removesuffix("...\n").rstrip("\n") if is_line else text
