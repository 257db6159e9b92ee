"""What a monitor plugin inherits from: the published `Monitor` interface.

A plugin registers a class with `@MONITOR.register_module("name")` and is chosen by `monitor.monitor_type: name`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trinity.monitor.registry import MONITOR

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MonitorSettings:
    """The `monitor` section as a backend reads it.

    Attributes:
        monitor_args: arguments that the user wrote under `monitor.monitor_args`.
        cache_dir: folder of this job for files of monitors, `<job>/monitor`.
    """

    monitor_args: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str = ""


@dataclass(frozen=True)
class BackendConfig:
    """What a backend may know of the run, under the names that the configuration gives it."""

    checkpoint_job_dir: str
    monitor: MonitorSettings


class MonitorBackend(ABC):
    """Sends metrics of one actor to one place.

    An error that a method raises does not end the run: it is counted and reported once.

    Args:
        project: `project` of the configuration.
        group: name that the actors of one experiment share.
        name: `name` of the configuration.
        role: the actor, `explorer` or `trainer`.
        config: holds `checkpoint_job_dir` and `monitor.{monitor_args, cache_dir}`.
    """

    def __init__(self, project: str, group: str, name: str, role: str, config: Any = None) -> None:
        self.project = project
        self.group = group
        self.name = name
        self.role = role
        self.config = config

    @abstractmethod
    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        """Record metrics of a step; `commit` says that nothing more follows for this step."""

    # The methods below have an empty default, so that a plugin writes only what its place can take.
    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:  # noqa: B027
        """Record a table of text; a backend without tables leaves it out."""

    def resume(self, kept: list[dict[str, Any]]) -> None:  # noqa: B027
        """Continue after `kept`, the last metric lines that stay, some hundred; later ones no longer count."""

    def close(self) -> None:  # noqa: B027
        """Flush and release what the backend holds."""

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return the arguments under `monitor.monitor_args` with their defaults, as the table of contents has them."""
        place = f"{cls.__module__}:{cls.__qualname__}"
        return next((dict(entry.args) for entry in MONITOR.contents.values() if entry.path == place), {})
