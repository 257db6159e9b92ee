"""What a monitor plugin inherits from: the published `Monitor` interface.

A plugin registers a class with `@MONITOR.register_module("name")` and is chosen by `monitor.monitor_type: name`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from trinity.common.config.showing import leaves
from trinity.common.config.tree import dotted
from trinity.utils.declaration import Declared

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MonitorSettings:
    """The `monitor` section as a backend reads it.

    Attributes:
        monitor_args: arguments that the user wrote under `monitor.monitor_args`.
        cache_dir: folder of this job for files of monitors, `<job>/monitor`.
        written: those of `monitor_args` that the user wrote; the others are defaults.
    """

    monitor_args: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str = ""
    written: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BackendConfig:
    """What a backend knows of the run.

    The names are those of the configuration; its other sections are there as well, without secrets, such as
    `config.model.model_path`.

    Attributes:
        checkpoint_job_dir: folder of the run.
        monitor: the `monitor` section.
        hyperparameters: the resolved configuration as nested plain values, without secrets.
    """

    checkpoint_job_dir: str
    monitor: MonitorSettings
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.hyperparameters:
            raise AttributeError(f"the configuration has no `{name}`")
        return _section(self.hyperparameters[name])

    def flat_hyperparameters(self) -> dict[str, str | bool | int | float]:
        """Return the hyperparameters by dotted name.

        An example is `algorithm.optimizer.lr`. Values that are not numbers become text.
        """
        return {
            dotted(path): value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for path, value in leaves(self.hyperparameters)
        }


def _section(value: Any) -> Any:
    """Return nested values with their names as attributes."""
    if isinstance(value, Mapping):
        return SimpleNamespace(**{str(name): _section(each) for name, each in value.items()})
    return [_section(each) for each in value] if isinstance(value, list) else value


class MonitorBackend(Declared, ABC):
    """Sends the metrics of one actor to one destination.

    It is made and called in a thread of its own, one call after the other, so that no method keeps the run waiting. An
    error that a method raises does not end the run: it is counted and reported once.

    Attributes:
        package: the module of an optional package that it needs; a run without it does not start.
        is_local: whether it writes to this machine's disk alone; it is then called where metrics are logged.

    A run makes it with all arguments by name; a subclass may take `group` or not.

    Args:
        project: `project` of the configuration.
        name: `name` of the configuration.
        role: the actor, `explorer` or `trainer`.
        config: what it may know of the run, a `BackendConfig`.
        group: name that the actors of one experiment share.
    """

    kind = "monitor"
    package: ClassVar[str] = ""
    is_local: ClassVar[bool] = False

    def __init__(self, project: str, name: str, role: str, config: Any = None, *, group: str = "") -> None:
        self.project = project
        self.group = group
        self.name = name
        self.role = role
        self.config = config

    @abstractmethod
    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        """Record metrics of a step.

        `commit` says that no more metrics follow for this step.
        """

    def format_data_str(self, data: Mapping[str, Any], step: int) -> str:
        """Return metrics as one line of text."""
        values = {name: value.item() if hasattr(value, "item") else value for name, value in data.items()}
        return f"Step {step}: {{{', '.join(f'{name!r}: {_figure(value)}' for name, value in values.items())}}}"

    # The methods below have an empty default, so that a plugin writes only what its place can take.
    def log_table(self, table_name: str, experiences_table: pd.DataFrame, step: int) -> None:
        """Record a table of text; a backend without tables ignores it."""

    def resume(self, kept: list[dict[str, Any]]) -> None:
        """Continue after `kept`, the last metrics that remain valid.

        `kept` has a few hundred lines; later lines no longer count.
        """

    def close(self) -> None:
        """Flush and release what the backend holds."""


def _figure(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
