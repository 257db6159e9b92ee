"""What a tracker inherits from: a place that has one run for all actors."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from trinity.monitor.backend import BackendConfig, MonitorBackend

# Explorer and trainer both log these; in one run they are told apart by the actor's name before them.
OF_SEVERAL = (
    "prompt_length/",
    "response_length/",
    "perf/sync_bytes",
    "perf/sync_gb_per_second",
    "perf/fate/",
    "time/sync_weight",
)


class UnreachableError(Exception):
    """The place does not answer now, and may later: what was to be sent waits."""


class Tracker(MonitorBackend):
    """A monitor whose place has one run for explorer and trainer.

    One process of a job at a time makes it and sends the lines of all actors, from `metrics.jsonl`: what could not be
    sent is sent later, also by a later start of the job, and takes no further memory or disk. Its calls are made in a
    thread, one after the other. One that raises `UnreachableError` is repeated; after any other error the call is left
    out, counted and reported.

    Attributes:
        identity: of the run at its place, which the constructor sets; everything is sent to a run that is new.
        tells_actors: the place tells actors apart by itself, so that names of metrics stay as they are.
        shows_last: the place shows the last value of a metric alone, and gets what a resumed run logs again, too.
    """

    tells_actors: ClassVar[bool] = False
    shows_last: ClassVar[bool] = False

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        super().__init__(project, name, role, config, group=group)
        self.identity = ""

    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        """Record metrics of a step of the actor that made this object."""
        self.log_line(self.role, step, time.time(), data)

    @abstractmethod
    def log_line(self, actor: str, step: int, time_s: float, data: Mapping[str, float]) -> None:
        """Record metrics of a step of any actor.

        Args:
            actor: that logged them.
            step: of that actor.
            time_s: when, in seconds since 1970; of an actor no two lines have the same.
            data: the metrics; what was not finite is nan.

        Raises:
            UnreachableError: they are to be sent again later.
        """

    def sent(self) -> Mapping[str, float] | None:
        """Return the time of the last line of each actor that is there.

        None: the place cannot tell, and what was sent counts as there.
        """
        return None


class Names:
    """Names of metrics in a run that several actors share.

    A metric of one actor keeps its name. If several actors log it, the actor's name is put before it: for names that
    begin as in `OF_SEVERAL` always, for all others unless the actor was the first to log it.

    Args:
        owners: the actor of each name, of before.
    """

    def __init__(self, owners: Mapping[str, str] | None = None) -> None:
        self.owners: dict[str, str] = dict(owners or {})

    def of(self, actor: str, names: Iterable[str]) -> dict[str, str]:
        """Return the name in the run for each name of an actor."""
        return {name: self._of(actor, name) for name in names}

    def _of(self, actor: str, name: str) -> str:
        if not name.startswith(OF_SEVERAL) and self.owners.setdefault(name, actor) == actor:
            return name
        return f"{actor}/{name}"
