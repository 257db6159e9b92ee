"""Metrics: `metrics.jsonl` always, and the monitors that are chosen.

A monitor is TensorBoard, Weights & Biases, MLflow, SwanLab, Prometheus or a plugin.

Names are imported on first use, so that the table of contents costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.monitor.backend import MonitorBackend as MonitorBackend
    from trinity.monitor.jsonl import read_metrics as read_metrics
    from trinity.monitor.monitor import Monitor as Monitor
    from trinity.monitor.registry import MONITOR as MONITOR
    from trinity.monitor.registry import MONITOR_CONTENTS as MONITOR_CONTENTS

_PLACES = {
    "MONITOR": "trinity.monitor.registry",
    "MONITOR_CONTENTS": "trinity.monitor.registry",
    "Monitor": "trinity.monitor.monitor",
    "MonitorBackend": "trinity.monitor.backend",
    "read_metrics": "trinity.monitor.jsonl",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
