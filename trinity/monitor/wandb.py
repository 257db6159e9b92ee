"""Weights & Biases."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.monitor import background
from trinity.monitor.backend import BackendConfig
from trinity.monitor.registry import MONITOR
from trinity.monitor.tracker import Tracker, UnreachableError
from trinity.utils.log import add_secret

if TYPE_CHECKING:
    import pandas as pd

STEP = "global_step"
SENT = "sent/"  # before an actor's name: when its last line was logged, by which a resumed run knows what it has
_DELETED = "previously created and deleted"


@MONITOR.register_module("wandb")
class WandbMonitor(Tracker):
    """Weights & Biases: one run with the metrics of explorer and trainer.

    Its project and its name are those of the configuration; the stages of a run are a group. A resumed job continues
    the same run.
    """

    package = "wandb"
    arguments = {"base_url": None, "api_key": None, "api_key_env": None}
    ranges = {"base_url": "text", "api_key_env": "text"}

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, group, name, role, config)
        import wandb

        self._wandb = wandb
        args = config.monitor.monitor_args
        given = {"base_url": args.get("base_url")}
        given["api_key"] = args.get("api_key") or os.environ.get(str(args.get("api_key_env") or ""), "")
        if given["api_key"]:
            add_secret(str(given["api_key"]))
        self._settings = _settings(wandb.Settings, {key: str(value) for key, value in given.items() if value})
        self._folder = config.monitor.cache_dir
        self._run = self._begin()
        settings = self._run.settings
        self._is_online = not self._run.offline and not self._run.disabled
        place = f"{settings.base_url}/{self._run.entity}" if self._is_online else "offline"
        self.identity = f"{place}/{self._run.project}/{self._run.id}"
        # W&B drops what is logged for a step below its own counter, which a resume or a second call for one step
        # would be; with an axis of our own nothing is dropped.
        self._run.define_metric("*", step_metric=STEP)
        self._run.define_metric(f"{SENT}*", hidden=True)

    def _begin(self) -> Any:
        """Return the run, continued if it is there.

        W&B never takes the identity of a run again that was deleted: such a job gets a new one, which it keeps.
        """
        kept = Path(self._folder) / "wandb_run.json"
        first = hashlib.sha256(self.config.checkpoint_job_dir.encode()).hexdigest()[:16]
        try:
            identity = str(json.loads(kept.read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError, TypeError):
            identity = first
        try:
            return self._init(identity)
        except self._wandb.errors.Error as error:
            if _DELETED not in str(error):
                raise
        identity = hashlib.sha256(identity.encode()).hexdigest()[:16]
        kept.write_text(json.dumps({"id": identity}), encoding="utf-8")
        return self._init(identity)

    def _init(self, identity: str) -> Any:
        return self._wandb.init(
            project=self.project,
            group=self.group or None,
            name=self.name,
            job_type=self.name.partition("/")[2] or None,
            id=identity,
            resume="allow",
            dir=self._folder,
            reinit="create_new",
            config=dict(self.config.hyperparameters),
            allow_val_change=True,
            settings=self._settings,
        )

    def sent(self) -> Mapping[str, float] | None:
        """Return what the server has of each actor.

        A run that was killed, or whose end W&B could not send, has less than was logged.
        """
        if not self._is_online:
            return None
        found = dict(self._run.summary) if self._run.resumed else {}
        return {name.removeprefix(SENT): float(found[name]) for name in found if name.startswith(SENT)}

    def log_line(self, actor: str, step: int, time_s: float, data: Mapping[str, float]) -> None:
        """Record metrics of a step.

        W&B keeps them on the disk until its server has them.
        """
        self._log({STEP: step, f"{SENT}{actor}": time_s, **data})

    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Record a table of text."""
        self._log({STEP: step, table_name: self._wandb.Table(dataframe=experiences_table)})

    def _log(self, data: dict[str, Any]) -> None:
        try:
            self._run.log(data)
        except OSError as error:  # W&B's own process has ended
            raise UnreachableError(str(error)) from error

    def close(self) -> None:
        """Send what is queued and end the run."""
        self._run.finish()


def _settings(kind: Any, given: Mapping[str, str]) -> Any:
    """Return W&B settings with deadlines for its start and its end.

    W&B also waits for its end after ours.
    """
    limits: dict[str, Any] = {"init_timeout": background.START_S, "finish_timeout": background.CLOSE_S}
    known = {name: value for name, value in limits.items() if name in kind.model_fields}
    return kind(console="off", quiet=True, **known, **given)
