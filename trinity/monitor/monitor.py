"""`Monitor`: what explorer and trainer log to."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.monitor import headline
from trinity.monitor.backend import BackendConfig, MonitorBackend, MonitorSettings
from trinity.monitor.background import BackgroundBackend
from trinity.monitor.jsonl import JsonLines
from trinity.monitor.registry import MONITOR
from trinity.monitor.sent_steps import note_settings
from trinity.monitor.shipping import Shipper
from trinity.monitor.tracker import Tracker
from trinity.monitor.verl_names import under_verl_names
from trinity.utils.declaration import declared_args
from trinity.utils.log import FILE_ONLY, get_logger
from trinity.utils.packages import is_installed

METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
RESERVED = frozenset({"actor", "seq", "step", "time"})

MetricsListener = Callable[[str, int, Mapping[str, float]], None]


class Monitor:
    """Records metrics of one actor.

    They go to `<job>/metrics.jsonl` and to the monitors that the configuration names.

    A disk, a network or a backend that fails does not end a run: `num_failures` counts, and the first failure of each
    place is reported.

    Args:
        job_dir: folder of the run.
        project: `project` of the configuration.
        name: `name` of the configuration, with the suffix of the stage.
        actor: `explorer` or `trainer`; part of every line.
        monitor_type: a name in `MONITOR`, or several; None or an empty text writes `metrics.jsonl` only.
        monitor_args: `monitor.monitor_args` of the configuration.
        hyperparameters: the resolved configuration as nested plain values, without secrets; for the backend.
        group: name that runs have in common at a tracker; empty: the name without that of the stage.
        verl_names: record metrics also under veRL's names.
        listener: receives `(actor, step, metrics)` of every call, for a progress display.

    Raises:
        ConfigError: no monitor of this name.
        EnvironmentProblem: the package of the monitor is not installed.
    """

    def __init__(
        self,
        job_dir: Path | str,
        *,
        project: str,
        name: str,
        actor: str,
        monitor_type: str | Sequence[str] | None = "tensorboard",
        monitor_args: Mapping[str, Any] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        group: str = "",
        verl_names: bool = False,
        listener: MetricsListener | None = None,
    ) -> None:
        self.job_dir = Path(job_dir)
        self.actor = actor
        self.num_failures = 0
        self._warned: set[str] = set()
        self._hyperparameters = dict(hyperparameters or {})
        self._has_verl_names = verl_names
        self._listener = listener
        self._logger = get_logger(f"{actor}.monitor")
        self._metrics = JsonLines(self.job_dir / METRICS_FILE, actor)
        self._samples = JsonLines(self.job_dir / "monitor" / SAMPLES_FILE, actor)
        self._lock = threading.Lock()
        self._backends: dict[str, MonitorBackend] = {}
        self._backgrounds: dict[str, BackgroundBackend] = {}
        self._shippers: list[Shipper] = []
        names = [monitor_type] if isinstance(monitor_type, str) else monitor_type or []
        classes = {each: MONITOR.get(each) for each in names if each}
        for monitor, backend_class in classes.items():
            _check_package(monitor, backend_class)
        for monitor, backend_class in classes.items():
            given = dict(monitor_args or {})
            arguments = declared_args(backend_class, kind="monitor") | given
            settings = MonitorSettings(arguments, str(self.job_dir / "monitor"), given)
            config = BackendConfig(str(self.job_dir), settings, self._hyperparameters)
            common = group or name.partition("/")[0]
            make = partial(backend_class, project=project, group=common, name=name, role=actor, config=config)
            self._start(monitor, backend_class, make)

    def _start(self, monitor: str, kind: type[MonitorBackend], make: Callable[[], Any]) -> None:
        place = f"monitor {monitor}"

        def begin() -> None:
            self._backends[place] = make()

        if issubclass(kind, Tracker):
            self._shippers.append(
                Shipper(
                    make,
                    monitor=monitor,
                    metrics=self._metrics.path,
                    samples=self._samples.path,
                    guarded=self._guarded,
                    logger=self._logger,
                )
            )
        elif kind.is_local:
            self._guarded(place, begin)
        else:
            self._backgrounds[place] = BackgroundBackend(make, name=place, guarded=self._guarded, logger=self._logger)

    def _call(self, place: str, action: Callable[[MonitorBackend], None]) -> None:
        """Call `action` with each backend.

        A local backend is called directly, any other in its thread without waiting. Trackers read the files.
        """
        for shipper in self._shippers:
            shipper.wake()
        for backend in self._backends.values():
            self._guarded(place, partial(action, backend))
        for background in self._backgrounds.values():
            self._guarded(place, partial(background.call, action))

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Record the metrics of a step as one line and one backend call.

        A value that is not finite becomes null.

        Raises:
            WorkflowError: a value is not a number, or a name is one of `actor`, `seq`, `step`, `time`.
        """
        values = {key: _number(key, value) for key, value in data.items()}
        if self._has_verl_names:
            values |= under_verl_names(values, step)
        line: dict[str, Any] = {"step": int(step), "time": self._metrics.now_s()}
        line.update({key: value if math.isfinite(value) else None for key, value in values.items()})
        self._guarded(METRICS_FILE, lambda: self._metrics.append([line]))
        self._call("the monitor", lambda backend: backend.log(dict(values), step, commit=True))
        # For the file of the log: the console has a display of its own.
        figures = f"step {step}  {headline.text(values)}".rstrip()
        self._logger.info("%s", figures, extra={FILE_ONLY: True})
        self.tell(values, step)

    def tell(self, values: Mapping[str, float], step: int) -> None:
        """Tell the listener alone; nothing is recorded."""
        listener = self._listener
        if listener is not None:
            self._guarded("the progress display", lambda: listener(self.actor, step, values))

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Record a table of text.

        Each row is a line of `<job>/monitor/samples.jsonl`; the backend gets the table.
        """
        now_s = self._samples.now_s()
        lines = [{"table": name, "step": int(step), "time": now_s, "row": _plain(row)} for row in rows]
        self._guarded(SAMPLES_FILE, lambda: self._samples.append(lines))
        if rows:
            table = [dict(row) for row in rows]
            self._call("the monitor's table", lambda backend: _send_table(backend, name, table, step))

    def state_dict(self) -> dict[str, int]:
        """Return the number of lines this actor has written.

        A checkpoint keeps it.
        """
        return {"lines": self._metrics.num_lines, "samples": self._samples.num_lines}

    def truncate(self, state: Mapping[str, int]) -> None:
        """Go back to a `state_dict`.

        Later lines of this actor are removed; lines of other actors stay. Trackers get a step that is logged again only
        where the settings are others than before.
        """
        if self._shippers:
            note = partial(note_settings, self._samples.path.parent, self.actor, self._hyperparameters)
            self._guarded("the monitor", partial(note, now_s=self._metrics.now_s()))
        kept = self._metrics.truncate(state["lines"])
        self._samples.truncate(state.get("samples", self._samples.num_lines))
        if self._metrics.num_lines < state["lines"]:
            self._logger.warning(
                "%s holds %d lines of %s and the checkpoint counts %d; the others are damaged or were never written",
                self._metrics.path,
                self._metrics.num_lines,
                self.actor,
                state["lines"],
            )
        self._call("the monitor", lambda backend: backend.resume(kept))

    def close(self) -> None:
        """Flush and close the backends, waiting a few seconds at most for each.

        Calling it again has no effect.
        """
        backends, self._backends = self._backends, {}
        backgrounds, self._backgrounds = self._backgrounds, {}
        shippers, self._shippers = self._shippers, []
        for shipper in shippers:
            shipper.stop()  # all at once, since each may take its time
        for backend in backends.values():
            self._guarded("the monitor", backend.close)
        for background in backgrounds.values():
            background.close()
        for shipper in shippers:
            shipper.close()

    def _guarded(self, place: str, action: Callable[[], None]) -> None:
        """Run `action`; count a failure and report the first one of each place."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a monitor is other people's code, and must not end a training run
            with self._lock:
                self.num_failures += 1
                is_first = place not in self._warned
                self._warned.add(place)
            if is_first:
                reason = f"{type(error).__name__}: {error}"
                self._logger.warning("%s failed; the run continues and further failures are counted: %s", place, reason)


def _check_package(monitor_type: str, backend_class: type[MonitorBackend]) -> None:
    """Raise EnvironmentProblem if a monitor's package is missing (E3301)."""
    package = backend_class.package
    if package and not is_installed(package):
        raise EnvironmentProblem(
            f"monitor.monitor_type is {monitor_type} and the package is not installed; "
            f"run pip install 'trinity-rft[{package}]' or set monitor.monitor_type to tensorboard",
            code="E3301",
        )


def _send_table(backend: MonitorBackend, name: str, rows: list[dict[str, Any]], step: int) -> None:
    import pandas as pd

    backend.log_table(name, pd.DataFrame(rows), step)


def _number(key: str, value: Any) -> float:
    """Return `value` as a number, an integer as an integer.

    Raises:
        WorkflowError: not a number, or a reserved name.
    """
    if key in RESERVED:
        raise WorkflowError(
            f"metric name {key!r} is reserved in {METRICS_FILE} ({', '.join(sorted(RESERVED))}); rename the metric",
            code="E5191",
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str | bytes):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass  # told below, together with text
    raise WorkflowError(
        f"metric {key!r} must be a number, got {type(value).__name__} {value!r:.80}; log text with log_table",
        code="E5190",
    )


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return `row` with every value that JSON lacks as text."""
    return {str(key): value if _is_plain(value) else str(value) for key, value in row.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | bool)
