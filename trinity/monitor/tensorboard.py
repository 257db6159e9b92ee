"""TensorBoard event files, written by TensorBoard's own writer.

Needs neither torch nor tensorflow.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trinity.monitor.backend import BackendConfig, MonitorBackend
from trinity.monitor.registry import MONITOR
from trinity.monitor.tables import markdown_table

if TYPE_CHECKING:
    import pandas as pd

HEAD = ("actor", "seq", "step", "time")


@MONITOR.register_module("tensorboard")
class TensorboardMonitor(MonitorBackend):
    """Writes scalars, tables and hyperparameters for TensorBoard.

    The folder is `<job>/monitor/tensorboard/<role>`.
    """

    arguments = {}
    is_local = True

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, name, role, config, group=group)
        self.directory = Path(config.monitor.cache_dir) / "tensorboard" / role
        self.directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(self.directory))
        self._hyperparameters = config.flat_hyperparameters()
        self._log_hyperparameters()

    def _log_hyperparameters(self) -> None:
        if self._hyperparameters:
            self._add(Event(step=0, summary=hparams_pb(self._hyperparameters, trial_id=f"{self.project}/{self.name}")))

    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        """Write one scalar a metric."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in data.items()]
        self._add(Event(step=step, summary=Summary(value=values)))

    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Write the table as text, in the Markdown that TensorBoard shows."""
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        text = markdown_table(experiences_table)
        tensor = TensorProto(
            dtype=DT_STRING,
            string_val=[text.encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        value = Summary.Value(tag=f"{table_name}/text_summary", metadata=metadata, tensor=tensor)
        self._add(Event(step=step, summary=Summary(value=[value])))

    def resume(self, kept: list[dict[str, Any]]) -> None:
        """Make readers drop all data from the last kept step on.

        Then write that step's kept lines again.
        """
        step = max((record["step"] for record in kept), default=0)
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        for record in kept:
            if record["step"] == step:
                data = {k: math.nan if v is None else v for k, v in record.items() if k not in HEAD}
                self.log(data, step)
        if not step:  # readers dropped them, too
            self._log_hyperparameters()

    def close(self) -> None:
        """Write what is queued and close the file."""
        self._writer.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)
