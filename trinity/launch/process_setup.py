"""First actions of a process of a run.

They concern environment, log, determinism and plugins.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.constants import FAILPOINTS_ENV_VAR, LOG_LEVEL_ENV_VAR
from trinity.launch.process import prepare_process, use_deterministic_algorithms
from trinity.runtime.base import NODE_ENV_VAR, Setup
from trinity.runtime.scratch import JOB_ENV_VAR
from trinity.utils import failpoints
from trinity.utils.log import (
    add_secret,
    get_logger,
    is_secret_name,
    known_secrets,
    log_to_console,
    logged_to_file,
    set_level,
)
from trinity.utils.plugin_loader import load_plugins, loaded_directories

if TYPE_CHECKING:
    from trinity.common.config import Config

# Of the driver's environment, what decides results, the log, or failures that a test asks for. A process of a cluster
# that was started before the run has the environment of its start.
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
    JOB_ENV_VAR,
)

# What the services and libraries read that a run talks to: addresses, keys, folders.
CARRIED_BEGINNINGS = ("HF_", "WANDB_", "MLFLOW_", "VLLM_", "NCCL_", "GLOO_")

THIS_MACHINE = "127.0.0.1"
"""Name of the log folder of a run that has no cluster."""

_open_logs = contextlib.ExitStack()


def process_setup(config: Config, *, has_console: bool) -> Setup:
    """Return what the processes of a stage do first.

    Args:
        config: resolved configuration of the stage.
        has_console: a process prints its log; otherwise its parent gets the records.
    """
    arguments = {
        "environment": carried_environment(config),
        "folder": os.getcwd(),
        "model_path": config.model.model_path,
        "deterministic": config.deterministic,
        "level": config.log.level,
        "log_dir": str(Path(config.checkpoint_job_dir).absolute() / "log"),
        "by_node": config.log.group_by_node,
        "plugin_dirs": [str(folder) for folder in loaded_directories()],
        "secrets": known_secrets(),
        "has_console": has_console,
    }
    return Setup(set_up_process, arguments)


def carried_environment(config: Config) -> dict[str, str]:
    """Return the part of this environment that a stage's processes need.

    Secrets in it are remembered as such.
    """
    models = (config.explorer.rollout_model, *config.explorer.auxiliary_models)
    servers = [server for server in (config.model.external_model, *(m.external_model_config for m in models)) if server]
    monitor_args = config.monitor.monitor_args or {}
    keys = [*(each.api_key_env for each in servers), monitor_args.get("api_key_env"), monitor_args.get("password_env")]
    named = {*CARRIED, *(each.base_url_env for each in servers), *keys}
    carried = {
        name: value for name, value in os.environ.items() if name in named or name.startswith(CARRIED_BEGINNINGS)
    }
    for name, value in carried.items():
        if name in keys or is_secret_name(name):
            add_secret(value)
    return carried


def set_up_process(
    name: str,
    *,
    environment: Mapping[str, str],
    folder: str,
    model_path: str,
    deterministic: bool,
    level: str,
    log_dir: str,
    by_node: bool,
    plugin_dirs: Sequence[str],
    secrets: Sequence[str],
    has_console: bool,
) -> None:
    """Prepare this process for the component `name` of a runtime.

    The arguments are those of `process_setup`.
    """
    os.environ.update(environment)
    failpoints.enter(name)
    for secret in secrets:
        add_secret(secret)
    if has_console:
        log_to_console()
    set_level(level)
    logs = Path(log_dir) / os.environ.get(NODE_ENV_VAR, THIS_MACHINE) if by_node else Path(log_dir)
    _open_logs.enter_context(logged_to_file("", logs / f"{name}.log"))
    if Path(folder).is_dir():
        os.chdir(folder)  # relative paths mean what they mean to the driver
    else:
        get_logger("launch").warning("%s is not on this machine: relative paths mean files in %s", folder, os.getcwd())
    prepare_process(model_path, deterministic=deterministic)
    if deterministic:
        use_deterministic_algorithms()
    if plugin_dirs:
        load_plugins(plugin_dirs)
