"""What a program may give as a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity.common.config import Config, ConfigErrors, ConfigSource, Finding

Given = str | os.PathLike[str] | Mapping[str, Any]
"""A YAML file, or its values as a mapping."""


def source_of(config: Given | Config) -> ConfigSource:
    """Return where the values of a configuration stand.

    Raises:
        ConfigErrors: it is something else (E1101).
    """
    if isinstance(config, Config):
        return config.model_dump(mode="json", exclude_unset=True)
    if isinstance(config, Mapping):
        return config
    if isinstance(config, str | os.PathLike):
        return Path(config)
    message = f"the configuration must be a YAML file, a mapping or a `Config`, got {type(config).__name__}"
    raise ConfigErrors([Finding("E1101", "", message)])


def folders(plugin_dirs: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the given folders; a single one may stand alone."""
    given = [plugin_dirs] if isinstance(plugin_dirs, str | Path) else plugin_dirs
    return tuple(Path(each) for each in given)
