"""A file checked on this machine, before anything is started. Imports neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path

from trinity.catalogue import BUILT_IN
from trinity.catalogue import plugin_dirs as all_plugin_dirs
from trinity.common.config import Finding, Plan, examine, plugin_dirs_of, read_plugins
from trinity.common.models.hub import cached_model
from trinity.launch.models import with_local_models
from trinity.preflight.machine import check_machine


def check(
    path: Path, overrides: tuple[str, ...] = (), *, plugin_dirs: tuple[Path, ...] = (), schema_only: bool = False
) -> tuple[Plan, list[Finding]]:
    """Return the plan of a file and all findings, those of this machine included unless `schema_only`.

    Raises:
        ConfigErrors: the file cannot be read as YAML.
    """
    plugins = read_plugins(all_plugin_dirs((*plugin_dirs, *plugin_dirs_of(path, overrides))))
    catalogue = BUILT_IN.with_plugins(plugins.names, has_unknown=plugins.has_unknown)
    plan, found = examine(path, overrides, catalogue=catalogue, schema_only=schema_only)
    found = [*plugins.problems, *found]
    if not schema_only and not any(finding.is_error for finding in found):
        found += check_machine(with_local_models(plan, cached_model))
    return plan, found
