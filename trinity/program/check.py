"""`trinity.load_config` and `trinity.validate`: before a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trinity.common.config import Config, ConfigErrors, Overrides, override_texts
from trinity.common.config import load_config as read_config
from trinity.launch.validation import check
from trinity.program.reports import ValidationReport
from trinity.program.source import Given, folders, source_of


def load_config(config: Given, overrides: Overrides | None = None) -> Config:
    """Return a configuration as it is written, keys and types checked.

    `config.check_and_update()` fills in what follows from it; `run` does so by itself.

    Args:
        config: a YAML file, or its values as a mapping.
        overrides: `{"a.b": value}`, nested or dotted, or texts `a.b=value` as of `--set`.

    Raises:
        ConfigErrors: all problems of keys and types.
    """
    return read_config(source_of(config), override_texts(overrides))


def validate(
    config: Given | Config,
    overrides: Overrides | None = None,
    *,
    plugin_dirs: Sequence[str | Path] = (),
    schema_only: bool = False,
) -> ValidationReport:
    """Return all problems of a configuration; start and write nothing.

    It imports neither torch nor transformers, and needs no GPU.

    Args:
        config: a YAML file, its values as a mapping, or what `load_config` returned.
        overrides: `{"a.b": value}`, nested or dotted, or texts `a.b=value` as of `--set`.
        plugin_dirs: folders of plugins; they are read, not imported.
        schema_only: leave out what depends on this machine and this version.
    """
    try:
        plan, found = check(
            source_of(config), override_texts(overrides), plugin_dirs=folders(plugin_dirs), schema_only=schema_only
        )
    except ConfigErrors as error:
        return ValidationReport(tuple(error.problems))
    is_valid = not any(problem.is_error for problem in found)
    derived = tuple(tuple(stage.derived) for stage in plan.stages)
    return ValidationReport(tuple(found), derived, tuple(stage.config for stage in plan.stages) if is_valid else ())
