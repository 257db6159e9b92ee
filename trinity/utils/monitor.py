"""Published import path of the monitor plugin interface."""

from __future__ import annotations

from trinity.monitor.backend import MonitorBackend as Monitor
from trinity.monitor.gathering import gather_metrics
from trinity.monitor.registry import MONITOR

__all__ = ["MONITOR", "Monitor", "gather_metrics"]
