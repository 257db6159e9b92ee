"""Validation of a file on this machine before anything is started.

Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trinity.catalogue import catalogue_of
from trinity.catalogue import plugin_dirs as all_plugin_dirs
from trinity.common.config import ConfigSource, Finding, Plan, examine, plugin_dirs_of
from trinity.common.models.hub import cached_model, fetched_model
from trinity.launch.copies import check_addresses, kept, with_local_copies
from trinity.launch.models import with_local_models
from trinity.preflight.machine import check_machine
from trinity.utils.remote.copies import fetch


def check(
    source: ConfigSource,
    overrides: tuple[str, ...] = (),
    *,
    plugin_dirs: tuple[Path, ...] = (),
    schema_only: bool = False,
    fetches: bool = False,
) -> tuple[Plan, list[Finding]]:
    """Return the plan of a file and all findings.

    The findings include those of this machine, unless `schema_only`. The network is asked only if `fetches`: then what
    is given by an address or a hub id is fetched first.

    Raises:
        ConfigErrors: the file cannot be read as YAML.
    """
    catalogue, of_plugins = catalogue_of(all_plugin_dirs((*plugin_dirs, *plugin_dirs_of(source, overrides))))
    plan, found = examine(source, overrides, catalogue=catalogue, schema_only=schema_only)
    found = [*of_plugins, *found, *_checked_at_run(plan)]
    if not schema_only and not any(finding.is_error for finding in found):
        found += check_addresses(plan)
        local = with_local_copies(plan, fetch if fetches else kept)
        found += check_machine(with_local_models(local, fetched_model if fetches else cached_model))
    return plan, found


def _checked_at_run(plan: Plan) -> Iterator[Finding]:
    stages = {stage.config.algorithm.algorithm_type: stage for stage in plan.stages}
    for name, stage in stages.items():
        entry = stage.catalogue.entry("algorithm_type", name)
        if entry is not None and entry.has_check:
            message = f"`check_config` of algorithm_type {name} is code of a plugin; it is called when the run starts"
            yield stage.placed(Finding("W3910", "algorithm.algorithm_type", message))
