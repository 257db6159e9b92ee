"""SwanLab."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.monitor.backend import BackendConfig
from trinity.monitor.registry import MONITOR
from trinity.monitor.tables import markdown_table
from trinity.monitor.tracker import Tracker
from trinity.utils.log import add_secret

if TYPE_CHECKING:
    import pandas as pd


@MONITOR.register_module("swanlab")
class SwanlabMonitor(Tracker):
    """SwanLab: one experiment with the metrics of explorer and trainer.

    Its project and its name are those of the configuration; the stages of a run are a group. A resumed job continues
    the same experiment where the mode is `online`, for which `cloud` is another word.
    """

    package = "swanlab"
    arguments = {
        "api_key": None,
        "api_key_env": None,
        "workspace": None,
        "mode": None,
        "logdir": None,
        "description": None,
        "tags": None,
    }
    ranges = {
        "api_key_env": "text",
        "workspace": "text",
        "mode": ("online", "cloud", "offline", "local", "disabled"),
        "logdir": "text",
        "description": "text",
    }

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, group, name, role, config)
        import swanlab

        self._swanlab = swanlab
        args = config.monitor.monitor_args
        api_key = args.get("api_key") or os.environ.get(str(args.get("api_key_env") or ""), "")
        if api_key:
            add_secret(str(api_key))
            os.environ["SWANLAB_API_KEY"] = str(api_key)
        identity = hashlib.sha256(config.checkpoint_job_dir.encode()).hexdigest()[:16]
        mode = args.get("mode") or os.environ.get("SWANLAB_MODE") or None
        folder = Path(args.get("logdir") or Path(config.monitor.cache_dir) / "swanlab")
        folder.mkdir(parents=True, exist_ok=True)
        self._run = swanlab.init(
            project=project,
            workspace=args.get("workspace"),
            name=name,
            group=group or None,
            description=args.get("description"),
            tags=args.get("tags"),
            config=dict(config.hyperparameters),
            mode="online" if mode == "cloud" else mode,
            log_dir=str(folder),
            id=identity,
            resume="allow",
            reinit=True,
        )
        self.identity = f"{self._run.mode}/{args.get('workspace') or ''}/{project}/{identity}"

    def log_line(self, actor: str, step: int, time_s: float, data: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        self._run.log(dict(data), step=step)

    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Record a table as text, in Markdown."""
        self._run.log({table_name: self._swanlab.Text(markdown_table(experiences_table))}, step=step)

    def close(self) -> None:
        """Send what is queued and end the experiment."""
        self._run.finish()
