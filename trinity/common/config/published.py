"""What scripts written for Trinity-RFT call on a configuration."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any, Self

from trinity.common.config.base import Section
from trinity.common.constants import LOG_LEVEL_ENV_VAR, PLUGIN_DIRS_ENV_VAR

# Knows all names; imported when a configuration is completed, since it lies above this package.
CATALOGUE = "trinity.catalogue"


class PublishedConfig(Section):
    """The functions of a published configuration object."""

    def check_and_update(self) -> Self:
        """Check the configuration and complete it in place; return it.

        This is the one change that a configuration takes: every value that was not written is filled in, as for
        `trinity run`.

        Raises:
            ConfigErrors: all problems at once, or several stages (E1604).
        """
        done = importlib.import_module(CATALOGUE).completed(self)
        vars(self).update(vars(done))
        object.__setattr__(self, "__pydantic_fields_set__", set(done.model_fields_set))
        return self

    def flatten(self) -> dict[str, Any]:
        """Return all values by dotted key; an entry of a list has its number."""
        return dict(_leaves(self.model_dump(), ""))

    def get_envs(self) -> dict[str, str]:
        """Return the environment variables that processes of the run need."""
        config: Any = self  # every section is there
        dirs = [*config.plugin_dirs, *filter(None, os.environ.get(PLUGIN_DIRS_ENV_VAR, "").split(os.pathsep))]
        found = {PLUGIN_DIRS_ENV_VAR: os.pathsep.join(dirs), LOG_LEVEL_ENV_VAR: config.log.level}
        external = config.model.external_model
        if external.enable:
            found |= {name: os.environ.get(name, "") for name in (external.base_url_env, external.api_key_env)}
        return found

    def get_checkpoint_job_dir(self) -> str:
        """Return the folder of the job, `<root>/<project>[/<group>]/<name>`."""
        config: Any = self  # every section is there
        return os.path.join(config.checkpoint_root_dir, config.project, config.group, config.name)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        pairs = [(str(name), entry) for name, entry in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(str(number), entry) for number, entry in enumerate(value)]
    else:
        yield key, value
        return
    for name, entry in pairs:
        yield from _leaves(entry, f"{key}.{name}" if key else name)
