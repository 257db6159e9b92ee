"""The packages that a stage needs beyond those that are always installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trinity.common.config.problems import Finding
from trinity.utils.packages import install_hint, is_installed, postgresql_driver

if TYPE_CHECKING:
    from trinity.common.config import Config

TRACKERS = ("wandb", "mlflow")


def check_extras(config: Config) -> Iterator[Finding]:
    """Yield each package that the stage needs and this machine lacks (E3301); vLLM is told with the devices."""
    for key, package, extra, other in _needed(config):
        if not is_installed(package):
            message = f"`{key}` needs the package {package}, which is not installed"
            yield Finding("E3301", key, message, suggestion=f"run {install_hint(extra)}, or use --set {other}")


def _needed(config: Config) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, package, extra that brings it, and what to write instead."""
    tracker = config.monitor.monitor_type
    if tracker in TRACKERS:
        yield "monitor.monitor_type", tracker, tracker, "monitor.monitor_type=tensorboard"
    if config.cluster.runtime == "ray":
        yield "cluster.runtime", "ray", "ray", "cluster.runtime=local"
    buffer = config.buffer.trainer_input.experience_buffer
    driver = postgresql_driver(buffer.path) if buffer is not None and buffer.path else None
    if driver is not None and buffer is not None and buffer.storage_type != "file":
        path = "buffer.trainer_input.experience_buffer.path"
        yield path, driver, "postgres", f"{path}=sqlite:///experience.db"
    for name, queue in config.buffer.trainer_input.auxiliary_buffers.items():
        driver = postgresql_driver(queue.path or "")
        if driver is not None and queue.storage_type == "queue":
            path = f"buffer.trainer_input.auxiliary_buffers.{name}.path"
            yield path, driver, "postgres", f"{path}=sqlite:///experts.db"
