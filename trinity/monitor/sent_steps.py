"""Which steps of which metrics a place has, so that none is sent twice.

A run that was killed after its checkpoint logs the steps after it again. A place that keeps all it gets has them
already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trinity.monitor.jsonl import locked
from trinity.utils.disk import write_atomically

SETTINGS_FILE = "actors.json"
NUM_RECENT = 256  # calls of an actor whose times are known
# They change no metric: who resumes may send to another place, or move the folder.
_IDLE = frozenset({"monitor", "log", "written", "checkpoint_root_dir", "checkpoint_job_dir"})


class SentSteps:
    """The last step that a place has of each metric.

    An actor logs a metric once a step, and its steps rise, but for a resume.

    Args:
        kept: a `state` of before.
    """

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        kept = kept or {}
        self._last: dict[str, dict[str, tuple[int, float]]] = {
            actor: {name: (int(step), float(time_s)) for name, (step, time_s) in names.items()}
            for actor, names in kept.get("last", {}).items()
        }
        self._recent: dict[str, list[tuple[float, int]]] = {
            actor: [(float(time_s), int(step)) for time_s, step in calls]
            for actor, calls in kept.get("recent", {}).items()
        }

    @property
    def state(self) -> dict[str, Any]:
        """What continues here, as plain values."""
        return {"last": self._last, "recent": self._recent}

    def has(self, actor: str, step: int, name: str, *, since_s: float = 0.0) -> bool:
        """Return whether the place has a metric of a step.

        Args:
            actor: that logged it.
            step: of that actor.
            name: of the metric, as the actor logged it.
            since_s: what was logged before does not count, in seconds since 1970.
        """
        last_step, time_s = self._last.get(actor, {}).get(name, (-1, 0.0))
        return step <= last_step and time_s > since_s

    def add(self, actor: str, step: int, names: Iterable[str], *, time_s: float) -> None:
        """Note metrics of a step that were sent, and when they were logged."""
        new = dict.fromkeys(names, (step, time_s))
        if new:
            self._last.setdefault(actor, {}).update(new)
            self._recent[actor] = [*self._recent.get(actor, [])[1 - NUM_RECENT :], (time_s, step)]

    def go_back(self, sent: Mapping[str, float]) -> None:
        """Keep what was logged until the time that is given for each actor.

        In doubt a metric is not kept, and is sent again.
        """
        for actor, names in self._last.items():
            until_s = sent.get(actor, 0.0)
            calls = self._recent.get(actor, [])
            known = [call for call in calls if call[0] <= until_s]
            step = known[-1][1] if known else -1
            if (later := calls[len(known) :]) and later[0][1] == step:  # of the step's calls only the first were sent
                step -= 1
            for name, (last_step, time_s) in names.items():
                if time_s > until_s:
                    names[name] = min(step, last_step), until_s
            self._recent[actor] = known


def note_settings(folder: Path, actor: str, hyperparameters: Mapping[str, Any], *, now_s: float) -> None:
    """Note from when on an actor logs what other settings give.

    Args:
        folder: of the monitors of a job.
        actor: that resumes.
        hyperparameters: the resolved configuration as nested plain values.
        now_s: later than all that it has logged, in seconds since 1970.
    """
    file = folder / SETTINGS_FILE
    values = {name: value for name, value in hyperparameters.items() if name not in _IDLE}
    settings = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(file):
        known = _read(file)
        if known.get(actor, {}).get("settings") != settings:
            known[actor] = {"settings": settings, "since": now_s if actor in known else 0.0}
            write_atomically(file, json.dumps(known))


def settings_since(folder: Path) -> dict[str, float]:
    """Return since when each actor has its settings, seconds since 1970."""
    return {actor: float(known.get("since", 0.0)) for actor, known in _read(folder / SETTINGS_FILE).items()}


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_whole = isinstance(known, dict) and all(isinstance(each, dict) for each in known.values())
    return known if is_whole else {}
