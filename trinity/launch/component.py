"""What a process of the run does before it makes its component: environment, log, determinism, plugins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.constants import FAILPOINTS_ENV_VAR, LOG_LEVEL_ENV_VAR
from trinity.launch.process import prepare_process, use_deterministic_algorithms
from trinity.runtime.base import NODE_ENV_VAR, Setup
from trinity.utils import failpoints
from trinity.utils.log import add_secret, known_secrets, log_to_console, logged_to_file, set_level
from trinity.utils.plugin_loader import load_plugins, loaded_directories

if TYPE_CHECKING:
    from trinity.common.config import Config

# Of the driver's environment, what decides results, the log, or failures that a test asks for.
CARRIED = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "CUBLAS_WORKSPACE_CONFIG",
    "TOKENIZERS_PARALLELISM",
    FAILPOINTS_ENV_VAR,
    LOG_LEVEL_ENV_VAR,
)

THIS_MACHINE = "127.0.0.1"
"""Name of the log folder of a run that has no cluster."""

_open_logs = contextlib.ExitStack()


def component_setup(config: Config, *, has_console: bool) -> Setup:
    """Return what the processes of a stage do first.

    Args:
        config: resolved configuration of the stage.
        has_console: a process prints its log; otherwise its parent gets the records.
    """
    arguments = {
        "environment": {name: os.environ[name] for name in CARRIED if name in os.environ},
        "model_path": config.model.model_path,
        "deterministic": config.deterministic,
        "level": config.log.level,
        "log_dir": str(Path(config.checkpoint_job_dir).absolute() / "log"),
        "by_node": config.log.group_by_node,
        "plugin_dirs": [str(folder) for folder in loaded_directories()],
        "secrets": known_secrets(),
        "has_console": has_console,
    }
    return Setup(prepare_component, arguments)


def prepare_component(
    name: str,
    *,
    environment: Mapping[str, str],
    model_path: str,
    deterministic: bool,
    level: str,
    log_dir: str,
    by_node: bool,
    plugin_dirs: Sequence[str],
    secrets: Sequence[str],
    has_console: bool,
) -> None:
    """Prepare this process for the component `name`; the arguments are those of `component_setup`."""
    os.environ.update(environment)
    failpoints.enter(name)
    for secret in secrets:
        add_secret(secret)
    if has_console:
        log_to_console()
    set_level(level)
    folder = Path(log_dir) / os.environ.get(NODE_ENV_VAR, THIS_MACHINE) if by_node else Path(log_dir)
    _open_logs.enter_context(logged_to_file("", folder / f"{name}.log"))
    prepare_process(model_path, deterministic=deterministic)
    if deterministic:
        use_deterministic_algorithms()
    if plugin_dirs:
        load_plugins(plugin_dirs)
