"""Prometheus: the present metrics of a run at `/metrics`."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trinity.monitor.backend import BackendConfig
from trinity.monitor.jsonl import last_records
from trinity.monitor.registry import MONITOR
from trinity.monitor.tracker import Tracker, UnreachableError

_UNKNOWN = re.compile(r"[^a-zA-Z0-9_]+")
HEAD = frozenset({"actor", "seq", "step", "time"})
LABELS = ("project", "name", "actor")


@MONITOR.register_module("prometheus")
class PrometheusMonitor(Tracker):
    """Prometheus: the last value of each metric at `/metrics` of a port.

    The metrics of explorer and trainer are there, with the labels `project`, `name` and `actor`:
    `rollout/reward/mean` is `trinity_rollout_reward_mean`.
    """

    arguments = {"host": "127.0.0.1", "port": 9464}
    ranges = {"host": "text", "port": "[0, 65535]"}
    tells_actors = True
    shows_last = True

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, group, name, role, config)
        args = config.monitor.monitor_args
        host, port = str(args["host"]), int(args["port"])
        self._values = LastValues(project, name)
        registry = CollectorRegistry()
        registry.register(self._values)
        self._server: WSGIServer
        try:
            self._server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise UnreachableError(
                f"port {port} of {host}: {error}; write another monitor.monitor_args.port"
            ) from error
        self.address = f"http://{host}:{self._server.server_port}/metrics"
        self.identity = self.address
        self._place = Path(config.monitor.cache_dir) / "prometheus.url"
        self._place.write_text(self.address, encoding="utf-8")
        self._sent: dict[str, float] = {}
        for actor, record in last_records(Path(config.checkpoint_job_dir) / "metrics.jsonl").items():
            data = {key: math.nan if value is None else value for key, value in record.items() if key not in HEAD}
            self.log_line(actor, record["step"], record["time"], data)
            self._sent[actor] = record["time"]

    def sent(self) -> Mapping[str, float] | None:
        """Return what is shown: the present is in the last lines."""
        return self._sent

    def log_line(self, actor: str, step: int, time_s: float, data: Mapping[str, float]) -> None:
        """Show the metrics of a step in place of those before."""
        self._values.put(actor, {**data, "step": step, "time_seconds": time_s})

    def close(self) -> None:
        """Stop answering."""
        self._place.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()


class LastValues(Collector):
    """The last value of each metric of each actor, for scrapes.

    Args:
        project: of the run.
        name: of the run.
    """

    def __init__(self, project: str, name: str) -> None:
        self._labels = (project, name)
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, tuple[str, float]]] = {}  # by actor and name in Prometheus

    def put(self, actor: str, values: Mapping[str, float]) -> None:
        """Replace the values of an actor's metrics; the others stay."""
        with self._lock:
            shown = self._values.setdefault(actor, {})
            shown.update({prometheus_name(name): (name, value) for name, value in values.items()})

    def collect(self) -> Iterable[Metric]:
        """Return a gauge for each metric."""
        families: dict[str, GaugeMetricFamily] = {}
        with self._lock:
            for actor, values in self._values.items():
                for shown, (name, value) in values.items():
                    family = families.setdefault(shown, GaugeMetricFamily(shown, f"Metric {name}.", labels=LABELS))
                    family.add_metric((*self._labels, actor), value)
        return list(families.values())


def prometheus_name(name: str) -> str:
    """Return a metric's name as Prometheus takes it."""
    return "trinity_" + _UNKNOWN.sub("_", name.replace("@", "_at_")).strip("_")
