"""MLflow."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.monitor.backend import BackendConfig
from trinity.monitor.registry import MONITOR
from trinity.monitor.tracker import Tracker, UnreachableError
from trinity.utils.log import add_secret, get_logger

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_URI = "http://localhost:5000"
ANSWER_S = 2.0
# What MLflow's stores take: characters of a name, its length, that of a value, parameters in one request.
_UNKNOWN = re.compile(r"[^\w\-. :/]")
MAX_NAME_CHARS, MAX_CHARS, MAX_PARAMS = 250, 500, 100
# What is wrong with the request itself, so that it would not help to repeat it.
_REFUSED = frozenset({
    "INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE",
    "RESOURCE_ALREADY_EXISTS",
})  # fmt: skip

_logger = get_logger("monitor")


@MONITOR.register_module("mlflow")
class MlflowMonitor(Tracker):
    """MLflow: one run with the metrics of explorer and trainer.

    The experiment is named after the project. A resumed job continues the same run. Where no address is written, it is
    that of `MLFLOW_TRACKING_URI`, or http://localhost:5000 if MLflow answers there, or a store in the run's folder.
    """

    package = "mlflow"
    arguments = {"uri": DEFAULT_URI, "username": None, "password": None, "password_env": None}
    ranges = {"password_env": "text"}

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, group, name, role, config)
        _put_credentials(config.monitor.monitor_args)
        # The deadlines of one attempt: it is repeated here, and a run that ends does not wait for long.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "8")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric, self._param, self._error = Metric, Param, MlflowException
        self._hyperparameters = config.flat_hyperparameters()
        # Which run it was: an MLflow run has a name, but no identity that we could choose.
        self._run_file = Path(config.monitor.cache_dir) / "mlflow_run.json"
        kept = self._kept()
        uri = self._place(kept)
        # The client, not the fluent interface: that one has a single active run a process.
        self._client = MlflowClient(tracking_uri=uri)
        with self._answered():
            self._run_id = self._earlier_run(kept, uri)
            self._is_continued = bool(self._run_id)
            if self._is_continued:
                self._client.update_run(self._run_id, status="RUNNING")
            else:
                self._run_id = self._new_run(uri)
            self._log_hyperparameters()
        self.identity = f"{uri} {self._run_id}"

    def _kept(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._run_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) and kept.get("project") == self.project else {}

    def _place(self, kept: Mapping[str, Any]) -> str:
        """Return the address: the written one, that of before, or what is there."""
        said = self.config.monitor.written.get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or kept.get("uri")
        if said:
            return str(said)
        if is_mlflow(DEFAULT_URI):
            return DEFAULT_URI
        uri = local_store(self.config.monitor.cache_dir)
        _logger.warning(
            "monitor mlflow: no server answers at %s, so that the run is kept in %s; to look at it: "
            "mlflow server --backend-store-uri %s",
            DEFAULT_URI,
            uri,
            uri,
        )
        return uri

    def _earlier_run(self, kept: Mapping[str, Any], uri: str) -> str:
        """Return the id of this job's existing run, or an empty text."""
        if kept.get("uri") != uri or not kept.get("run_id"):
            return ""
        try:
            info = self._client.get_run(str(kept["run_id"])).info
        except self._error as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return ""
        return str(info.run_id) if info.lifecycle_stage == "active" else ""

    def _new_run(self, uri: str) -> str:
        experiment = self._client.get_experiment_by_name(self.project)
        # A store of ours has its files beside it; left alone, MLflow puts them into the working directory.
        is_own = uri == local_store(self.config.monitor.cache_dir)
        files = (Path(self.config.monitor.cache_dir) / "mlflow").absolute().as_uri() if is_own else None
        if experiment is None:
            parent = self._client.create_experiment(self.project, artifact_location=files)
        else:
            parent = experiment.experiment_id
        tags = {"group": self.group, "stage": self.name.partition("/")[2]}
        tags = {key: value for key, value in tags.items() if value}
        made = str(self._client.create_run(parent, run_name=self.name, tags=tags).info.run_id)
        self._run_file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"uri": uri, "project": self.project, "run_id": made}
        self._run_file.write_text(json.dumps(kept), encoding="utf-8")
        return made

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

    def log_line(self, actor: str, step: int, time_s: float, data: Mapping[str, float]) -> None:
        """Record metrics of a step; a line that is sent twice is there once.

        MLflow refuses `@` in a name, so it becomes `_at_`.
        """
        time_ms = int(time_s * 1000)
        metrics = [self._metric(key.replace("@", "_at_"), value, time_ms, step) for key, value in data.items()]
        with self._answered():
            self._client.log_batch(self._run_id, metrics=metrics)

    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Record a table of text as an artifact."""
        with self._answered():
            self._client.log_table(self._run_id, experiences_table, f"{table_name}/{step}.json")

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Raise what MLflow refuses as it is; other errors can be tried again.

        Raises:
            UnreachableError: there was no answer, or one that may be different later.
        """
        try:
            yield
        except self._error as error:
            if error.error_code in _REFUSED:
                raise
            raise UnreachableError(str(error)) from error
        except OSError as error:  # also those of `requests`
            raise UnreachableError(str(error)) from error


def _put_credentials(args: Mapping[str, Any]) -> None:
    """Put written credentials into the environment, where MLflow reads them."""
    password = args.get("password") or os.environ.get(str(args.get("password_env") or ""), "")
    if args.get("username"):
        os.environ["MLFLOW_TRACKING_USERNAME"] = str(args["username"])
    if password:
        add_secret(str(password))
        os.environ["MLFLOW_TRACKING_PASSWORD"] = str(password)


def is_mlflow(uri: str) -> bool:
    """Return whether a server of MLflow answers; others use this port, too."""
    import httpx  # a sixth of a second, which checks of a file do without

    try:
        return httpx.get(f"{uri}/version", timeout=ANSWER_S).status_code == 200
    except httpx.HTTPError:
        return False


def local_store(folder: str) -> str:
    """Return the address of the store in a run's folder."""
    return f"sqlite:///{Path(folder).absolute() / 'mlflow.db'}"
