"""MLflow."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from trinity.common.errors import EnvironmentProblem
from trinity.monitor.backend import BackendConfig, MonitorBackend
from trinity.monitor.registry import MONITOR
from trinity.utils.log import add_secret

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_URI = "http://localhost:5000"


@MONITOR.register_module("mlflow")
class MlflowMonitor(MonitorBackend):
    """One run an actor in the experiment named after the project.

    Raises:
        EnvironmentProblem: the package is not installed.
    """

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, group, name, role, config)
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise EnvironmentProblem(
                "monitor.monitor_type is mlflow and the package is not installed; "
                "run pip install 'trinity-rft[mlflow]' or set monitor.monitor_type to tensorboard",
                code="E3301",
            ) from error
        self._metric = Metric
        args = config.monitor.monitor_args
        password = args.get("password") or os.environ.get(str(args.get("password_env") or ""), "")
        if args.get("username"):
            os.environ["MLFLOW_TRACKING_USERNAME"] = str(args["username"])
        if password:
            add_secret(str(password))
            os.environ["MLFLOW_TRACKING_PASSWORD"] = str(password)
        # The client, not the fluent interface: that one has a single active run a process, and there are two actors.
        self._client = MlflowClient(tracking_uri=str(args.get("uri") or DEFAULT_URI))
        experiment = self._client.get_experiment_by_name(project)
        identity = experiment.experiment_id if experiment else self._client.create_experiment(project)
        tags = {"group": group, "role": role}
        self._run_id = self._client.create_run(identity, run_name=f"{name}_{role}", tags=tags).info.run_id

    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        """Record metrics of a step; `@` in a name, which MLflow refuses, becomes `_at_`."""
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(key.replace("@", "_at_"), value, now_ms, step) for key, value in data.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Record a table of text as an artifact."""
        self._client.log_table(self._run_id, experiences_table, f"{table_name}/{step}.json")

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)
