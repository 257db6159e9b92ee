"""MLflow."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.monitor.backend import BackendConfig, MonitorBackend
from trinity.monitor.registry import MONITOR
from trinity.utils.log import add_secret

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_URI = "http://localhost:5000"
# What MLflow's stores take: characters of a name, its length, that of a value, parameters in one request.
_UNKNOWN = re.compile(r"[^\w\-. :/]")
MAX_NAME_CHARS, MAX_CHARS, MAX_PARAMS = 250, 500, 100


@MONITOR.register_module("mlflow")
class MlflowMonitor(MonitorBackend):
    """MLflow: one run per actor, in the experiment named after the project.

    A resumed job continues the same run.
    """

    package = "mlflow"
    arguments = {"uri": DEFAULT_URI, "username": None, "password": None, "password_env": None}
    ranges = {"password_env": "text"}

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, name, role, config, group=group)
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric, self._param, self._error = Metric, Param, MlflowException
        args = config.monitor.monitor_args
        password = args.get("password") or os.environ.get(str(args.get("password_env") or ""), "")
        if args.get("username"):
            os.environ["MLFLOW_TRACKING_USERNAME"] = str(args["username"])
        if password:
            add_secret(str(password))
            os.environ["MLFLOW_TRACKING_PASSWORD"] = str(password)
        uri = str(args.get("uri") or DEFAULT_URI)
        self._hyperparameters = config.flat_hyperparameters()
        # Which run it was: an MLflow run has a name, but no identity that we could choose.
        self._identity_file = Path(config.monitor.cache_dir) / f"mlflow_{role}.json"
        self._identity = {"uri": uri, "project": project}
        # The client, not the fluent interface: that one has a single active run a process, and there are two actors.
        self._client = MlflowClient(tracking_uri=uri)
        self._run_id = self._earlier_run()
        self._is_continued = bool(self._run_id)
        if self._is_continued:
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._run_id = self._new_run()
        self._log_hyperparameters()

    def _earlier_run(self) -> str:
        """Return the id of this job's existing run, or an empty text."""
        try:
            kept = json.loads(self._identity_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        if not isinstance(kept, dict) or self._identity.items() - kept.items():
            return ""
        try:
            info = self._client.get_run(str(kept.get("run_id"))).info
        except self._error as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return ""
        return str(info.run_id) if info.lifecycle_stage == "active" else ""

    def _new_run(self) -> str:
        experiment = self._client.get_experiment_by_name(self.project)
        parent = experiment.experiment_id if experiment else self._client.create_experiment(self.project)
        tags = {"group": self.group, "role": self.role}
        made = self._client.create_run(parent, run_name=f"{self.name}_{self.role}", tags=tags).info.run_id
        self._identity_file.parent.mkdir(parents=True, exist_ok=True)
        self._identity_file.write_text(json.dumps(self._identity | {"run_id": made}), encoding="utf-8")
        return str(made)

    def _log_hyperparameters(self) -> None:
        """Log the configuration.

        A parameter of MLflow cannot change, so a value that a resume changed becomes a tag.
        """
        old = self._client.get_run(self._run_id).data.params if self._is_continued else {}
        new = {_UNKNOWN.sub("_", key): str(value)[:MAX_CHARS] for key, value in self._hyperparameters.items()}
        for key, value in new.items():
            if key in old and old[key] != value:
                self._client.set_tag(self._run_id, f"resumed_with.{key}"[:MAX_NAME_CHARS], value)
        params = [self._param(key[:MAX_NAME_CHARS], value) for key, value in new.items() if key not in old]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS])

    def resume(self, kept: list[dict[str, Any]]) -> None:
        """Continue the same run.

        A job that starts over, with nothing kept, gets a new run.
        """
        if self._is_continued and not kept:
            self._client.set_terminated(self._run_id)
            self._is_continued, self._run_id = False, self._new_run()
            self._log_hyperparameters()

    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        """Record metrics of a step.

        MLflow refuses `@` in a name, so it becomes `_at_`.
        """
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(key.replace("@", "_at_"), value, now_ms, step) for key, value in data.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Record a table of text as an artifact."""
        self._client.log_table(self._run_id, experiences_table, f"{table_name}/{step}.json")

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)
