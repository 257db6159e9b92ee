"""Weights & Biases."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from trinity.monitor import background
from trinity.monitor.backend import BackendConfig, MonitorBackend
from trinity.monitor.registry import MONITOR
from trinity.utils.log import add_secret

if TYPE_CHECKING:
    import pandas as pd

STEP = "global_step"


@MONITOR.register_module("wandb")
class WandbMonitor(MonitorBackend):
    """Weights & Biases: one run per actor, grouped by the experiment.

    A resumed job continues the same run.
    """

    package = "wandb"
    arguments = {"base_url": None, "api_key": None, "api_key_env": None}
    ranges = {"base_url": "text", "api_key_env": "text"}

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, name, role, config, group=group)
        import wandb

        self._wandb = wandb
        args = config.monitor.monitor_args
        if args.get("base_url"):
            os.environ["WANDB_BASE_URL"] = str(args["base_url"])
        api_key = args.get("api_key") or os.environ.get(str(args.get("api_key_env") or ""), "")
        if api_key:
            add_secret(str(api_key))
            os.environ["WANDB_API_KEY"] = str(api_key)
        identity = hashlib.sha256(f"{config.checkpoint_job_dir}\n{role}".encode()).hexdigest()[:16]
        self._run = wandb.init(
            project=project,
            group=group,
            name=f"{name}_{role}".replace("/", "_"),
            id=identity,
            resume="allow",
            dir=config.monitor.cache_dir,
            reinit="create_new",
            config=dict(config.hyperparameters),
            allow_val_change=True,
            settings=_settings(wandb.Settings),
        )
        # W&B drops what is logged for a step below its own counter, which a resume or a second call for one step
        # would be; with an axis of our own nothing is dropped.
        self._run.define_metric("*", step_metric=STEP)

    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        """Record metrics of a step."""
        self._run.log({STEP: step, **data})

    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Record a table of text."""
        self._run.log({STEP: step, table_name: self._wandb.Table(dataframe=experiences_table)})

    def close(self) -> None:
        """Send what is queued and end the run."""
        self._run.finish()


def _settings(kind: Any) -> Any:
    """Return W&B settings with deadlines for its start and its end.

    W&B also waits for its end after ours.
    """
    limits: dict[str, Any] = {"init_timeout": background.START_S, "finish_timeout": background.CLOSE_S}
    known = {name: value for name, value in limits.items() if name in kind.model_fields}
    return kind(console="off", quiet=True, **known)
