"""All tables of contents at one place, for checking names without importing what they name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trinity.algorithm import (
    ADVANTAGE_CONTENTS,
    ALGORITHM_CONTENTS,
    CONTENTS,
    ENTROPY_LOSS_CONTENTS,
    KL_CONTENTS,
    POLICY_LOSS_CONTENTS,
    SAMPLE_STRATEGY_CONTENTS,
)
from trinity.buffer.operators import OPERATOR_CONTENTS
from trinity.buffer.priority import PRIORITY_CONTENTS
from trinity.buffer.selector import SELECTOR_CONTENTS
from trinity.common.config import Catalogue, ConfigErrors, Finding, read_plugins
from trinity.common.config.catalogue import REGISTRIES
from trinity.common.constants import PLUGIN_DIRS_ENV_VAR
from trinity.common.models.reward_models import REWARD_MODEL_CONTENTS
from trinity.common.rewards import REWARD_CONTENTS
from trinity.common.workflows import WORKFLOW_CONTENTS
from trinity.monitor import MONITOR_CONTENTS

BUILT_IN = Catalogue(
    algorithm_type=ALGORITHM_CONTENTS,
    advantage_fn=ADVANTAGE_CONTENTS,
    policy_loss_fn=POLICY_LOSS_CONTENTS,
    kl_fn=KL_CONTENTS,
    entropy_loss_fn=ENTROPY_LOSS_CONTENTS,
    sample_strategy=SAMPLE_STRATEGY_CONTENTS,
    workflow=WORKFLOW_CONTENTS,
    reward_fn=REWARD_CONTENTS,
    reward_model=REWARD_MODEL_CONTENTS,
    operator=OPERATOR_CONTENTS,
    selector=SELECTOR_CONTENTS,
    monitor=MONITOR_CONTENTS,
    priority_fn=PRIORITY_CONTENTS,
    bases=CONTENTS.classes,
)


def plugin_dirs(given: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Return the plugin folders: those given, then those of `TRINITY_PLUGIN_DIRS`, each once."""
    named = os.environ.get(PLUGIN_DIRS_ENV_VAR, "").split(os.pathsep)
    return tuple(dict.fromkeys([*given, *(Path(name) for name in named if name)]))


def builtin_catalogue(dirs: Iterable[Path] = ()) -> Catalogue:
    """Return the built-in names together with those that the plugin files of `dirs` register.

    Raises:
        ConfigErrors: a folder does not exist, a file cannot be read, or a declaration in it.
    """
    catalogue, problems = catalogue_of(dirs)
    errors = [problem for problem in problems if problem.is_error]
    if errors:
        raise ConfigErrors(errors)
    return catalogue


def catalogue_of(dirs: Iterable[Path]) -> tuple[Catalogue, list[Finding]]:
    """Return the built-in names together with those of the plugin files of `dirs`, and what is wrong with the files."""
    taken = {registry: BUILT_IN.contents(registry).keys() for registry in REGISTRIES}
    scan = read_plugins(dirs, bases=BUILT_IN.bases, taken=taken)
    return BUILT_IN.with_plugins(scan.names, entries=scan.entries, has_unknown=scan.has_unknown), scan.problems
