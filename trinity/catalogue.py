"""All tables of contents, for checking names without importing classes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trinity.algorithm import CONTENTS as ALGORITHMS
from trinity.buffer.operators.registry import CONTENTS as OPERATORS
from trinity.buffer.priority.registry import CONTENTS as PRIORITY_FUNCTIONS
from trinity.buffer.selector.registry import CONTENTS as SELECTOR_TABLES
from trinity.common.config import Catalogue, Config, ConfigErrors, Finding, complete, read_plugins
from trinity.common.constants import PLUGIN_DIRS_ENV_VAR
from trinity.common.models.reward_models.registry import CONTENTS as REWARD_MODELS
from trinity.common.rewards.registry import CONTENTS as REWARDS
from trinity.common.workflows.registry import CONTENTS as WORKFLOW_TABLES
from trinity.monitor.registry import CONTENTS as MONITORS
from trinity.utils.kinds import REGISTRIES

PACKAGES = (
    ALGORITHMS,
    OPERATORS,
    PRIORITY_FUNCTIONS,
    SELECTOR_TABLES,
    REWARD_MODELS,
    REWARDS,
    WORKFLOW_TABLES,
    MONITORS,
)
_CLASSES = {name: entry for package in PACKAGES for name, entry in package.classes.items()}
BUILT_IN = Catalogue(
    tables={kind: table for package in PACKAGES for kind, table in package.names.items()},
    # `Monitor` is the published name of `MonitorBackend`.
    bases=_CLASSES | {"Monitor": _CLASSES["MonitorBackend"]},
)


def plugin_dirs(given: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Return the given plugin folders, then `TRINITY_PLUGIN_DIRS`, each once."""
    named = os.environ.get(PLUGIN_DIRS_ENV_VAR, "").split(os.pathsep)
    return tuple(dict.fromkeys([*given, *(Path(name) for name in named if name)]))


def builtin_catalogue(dirs: Iterable[Path] = ()) -> Catalogue:
    """Return the built-in names and those registered by plugins in `dirs`.

    Raises:
        ConfigErrors: a folder does not exist, or a file or a declaration in it cannot be read.
    """
    catalogue, problems = catalogue_of(dirs)
    errors = [problem for problem in problems if problem.is_error]
    if errors:
        raise ConfigErrors(errors)
    return catalogue


def completed(config: Config) -> Config:
    """Return a configuration with all that `trinity run` would fill in.

    Names may be those of plugins in its `plugin_dirs` and in `TRINITY_PLUGIN_DIRS`.

    Raises:
        ConfigErrors: all problems at once.
    """
    return complete(config, catalogue=builtin_catalogue(plugin_dirs(Path(name) for name in config.plugin_dirs)))


def catalogue_of(dirs: Iterable[Path]) -> tuple[Catalogue, list[Finding]]:
    """Return built-in names and those of `dirs`, and the files' problems."""
    taken = {registry: BUILT_IN.contents(registry).keys() for registry in REGISTRIES.values()}
    scan = read_plugins(dirs, bases=BUILT_IN.bases, taken=taken)
    return BUILT_IN.with_plugins(scan.names, entries=scan.entries, has_unknown=scan.has_unknown), scan.problems
