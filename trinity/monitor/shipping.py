"""Sends the metrics of a job to a tracker, in a thread.

What is sent is read from the files of the run: one process at a time does it for all actors, and another continues
where it ended. A tracker that does not answer delays nothing, and gets what it missed when it answers again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from trinity.monitor import background
from trinity.monitor.sent_steps import settings_since
from trinity.monitor.tracker import Names, Tracker, UnreachableError
from trinity.monitor.unsent import LoggedCall, UnsentLines
from trinity.utils.locks import FileLock, is_held

POLL_S = 1.0  # lines of other processes are sent that late
PAUSES_S = (1.0, 60.0)  # between attempts: the first, which is doubled up to the last
HEAD = frozenset({"actor", "seq", "step", "time"})


class Shipper:
    """Keeps one tracker of a job up to date.

    Args:
        make: returns the tracker; may block and may raise.
        monitor: name of the tracker.
        metrics: the file of metrics.
        samples: the file of tables; the state of what was sent is kept beside it.
        guarded: runs a call of the tracker and reports its failure.
        logger: for messages to the user.
    """

    def __init__(
        self,
        make: Callable[[], Tracker],
        *,
        monitor: str,
        metrics: Path,
        samples: Path,
        guarded: Callable[[str, Callable[[], None]], None],
        logger: logging.Logger,
    ) -> None:
        self._make = make
        self._name = f"monitor {monitor}"
        self._guarded = guarded
        self._logger = logger
        self._files = metrics, samples
        self._state_file = samples.with_name(f"{monitor}.json")
        self._lock_file = samples.with_name(f".{monitor}.lock")
        self._lock: FileLock | None = None
        self._tracker: Tracker | None = None
        self._is_new = True  # shown at its place from the start; later the tracker is opened only to send something
        self._pause_s = 0.0
        self._making_since: float | None = None
        self._num_left = 0
        self._since: dict[str, float] = {}
        self._is_told = False
        self._woken, self._is_closing, self._is_left = threading.Event(), threading.Event(), threading.Event()
        self._load()
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that there are new lines; this never waits."""
        self._woken.set()

    def stop(self) -> None:
        """Let the thread send what there is, and end."""
        self._is_closing.set()
        self._woken.set()

    def close(self) -> None:
        """Stop, and wait for the end.

        What is left after `background.CLOSE_S` seconds is reported, and sent by the next start of the job.
        """
        self.stop()
        since = self._making_since
        is_first = not self._pause_s  # a place that was away gets no further time to start
        start_s = 0.0 if since is None or not is_first else max(0.0, since + background.START_S - time.monotonic())
        self._thread.join(background.CLOSE_S + start_s)
        self._is_left.set()
        if self._thread.is_alive() and self._lock is not None:
            self._guarded(self._name, self._count)
        elif self._thread.is_alive():
            return  # another process sends, and continues with it
        if self._num_left:
            self._logger.warning(
                "%s does not answer: the run ends without it, %d calls were not sent; metrics.jsonl has every metric, "
                "and the next start of this job sends them",
                self._name,
                self._num_left,
            )

    def _work(self) -> None:
        while not self._is_closing.is_set():
            self._guarded(self._name, self._turn)
            if self._pause_s:
                self._is_closing.wait(self._pause_s)
            else:
                self._woken.wait(POLL_S)
            self._woken.clear()
        self._guarded(self._name, self._finish)
        if self._tracker is not None:
            self._guarded(self._name, self._tracker.close)
        if self._lock is not None:
            self._lock.release()

    def _finish(self) -> None:
        """Send the rest, unless the process that sends does."""
        self._is_new = False
        while not self._leads():
            self._load()
            self._count()
            if not self._num_left or self._is_left.wait(0.05):
                self._num_left = 0
                return
        self._turn()
        self._count()

    def _turn(self) -> None:
        """Send what there is, if no other process does."""
        if not self._leads():
            self._is_new = False
            return
        try:
            if self._open():
                while self._send_some() and not self._is_left.is_set():
                    pass
        except UnreachableError as error:
            self._tell_away(error)
            return
        if self._pause_s and self._tracker is not None:
            self._logger.info("%s answers again, and has what it missed", self._name)
            self._pause_s = 0.0

    def _tell_away(self, error: UnreachableError) -> None:
        if not self._pause_s:
            self._logger.warning(
                "%s cannot be reached; the run continues, metrics.jsonl has every metric, and what is missing is sent "
                "when it answers: %s",
                self._name,
                error,
            )
        first, last = PAUSES_S
        self._pause_s = min(2 * self._pause_s or first, last)

    def _leads(self) -> bool:
        """Return whether this process sends, which it does if no other does."""
        if self._lock is None and not is_held(self._lock_file):
            try:
                self._lock = FileLock(self._lock_file)
            except BlockingIOError:
                return False
            self._load()
        return self._lock is not None

    def _load(self) -> None:
        """Read what was sent; a state that is damaged begins again."""
        try:
            self._take(json.loads(self._state_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, AttributeError):
            self._take({})

    def _take(self, state: dict[str, Any]) -> None:
        metrics, samples = self._files
        self._identity = str(state.get("identity", ""))
        self._metrics = UnsentLines(metrics, state.get("metrics"))
        self._samples = UnsentLines(samples, state.get("samples"))
        self._names = Names(state.get("owners"))

    def _save(self) -> None:
        state = {
            "identity": self._identity,
            "metrics": self._metrics.state,
            "samples": self._samples.state,
            "owners": self._names.owners,
        }
        temporary = self._state_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        os.replace(temporary, self._state_file)

    def _count(self) -> None:
        self._num_left = self._metrics.count() + self._samples.count()

    def _open(self) -> bool:
        """Open the tracker where it is needed; return whether it is open.

        Raises:
            UnreachableError: it cannot be opened now.
        """
        if self._tracker is not None:
            return True
        if not self._is_new and not self._metrics.read() and not self._samples.read():
            return False
        self._making_since = time.monotonic()
        alarm = threading.Timer(background.START_S, self._tell_slow_start)
        alarm.daemon = True
        alarm.start()
        try:
            tracker = self._make()
        except Exception as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        finally:
            alarm.cancel()
            self._making_since = None
        if tracker.identity != self._identity:
            self._metrics.restart({})
            self._samples.restart({})
            self._names, self._identity = Names(), tracker.identity
        sent = tracker.sent()
        if sent is not None and sent != self._metrics.sent:
            self._metrics.restart(sent)
        self._tracker = tracker
        self._save()
        return True

    def _tell_slow_start(self) -> None:
        self._logger.warning(
            "%s has not answered for %g s; the run continues without waiting for it, and metrics.jsonl has every "
            "metric",
            self._name,
            background.START_S,
        )

    def _send_some(self) -> bool:
        """Send some calls; return whether there were any.

        Raises:
            UnreachableError: the place does not answer.
        """
        calls, tables = self._metrics.read(), self._samples.read()
        self._since = settings_since(self._state_file.parent)  # a resume notes them before it logs
        for lines, group, send in ((self._metrics, calls, self._send), (self._samples, tables, self._send_table)):
            for call in group:
                if self._is_left.is_set():
                    break
                self._try(partial(send, call))
                lines.mark(call)
                self._save()  # at once: what is not remembered when the process is killed may be sent again
        return bool(calls or tables)

    def _try(self, send: Callable[[], None]) -> None:
        """Send a call; report any error that does not ask for a repeat."""
        away: list[UnreachableError] = []

        def attempt() -> None:
            try:
                send()
            except UnreachableError as error:
                away.append(error)

        self._guarded(self._name, attempt)
        if away:
            raise away[0]

    def _send(self, call: LoggedCall) -> None:
        assert self._tracker is not None, "lines are sent to an open tracker"
        for line in call.lines:
            new = self._new(self._metrics, call, [name for name in line if name not in HEAD])
            data = {name: math.nan if line[name] is None else line[name] for name in new}
            if data:
                names = self._shown(call.actor, data)
                shown = {names[name]: value for name, value in data.items()}
                self._tracker.log_line(call.actor, line["step"], call.time_s, shown)
                self._metrics.steps.add(call.actor, line["step"], data, time_s=call.time_s)

    def _send_table(self, call: LoggedCall) -> None:
        import pandas as pd

        assert self._tracker is not None, "tables are sent to an open tracker"
        table, step = call.lines[0]["table"], call.lines[0]["step"]
        if self._new(self._samples, call, [table]):
            name = self._shown(call.actor, {table: None})[table]
            self._tracker.log_table(name, pd.DataFrame([line["row"] for line in call.lines]), step)
            self._samples.steps.add(call.actor, step, [table], time_s=call.time_s)

    def _new(self, lines: UnsentLines, call: LoggedCall, names: list[str]) -> list[str]:
        """Return the names of a call that the place does not have of its step."""
        if self._tracker is not None and self._tracker.shows_last:
            return names
        step, since_s = call.lines[0]["step"], self._since.get(call.actor, 0.0)
        new = [name for name in names if not lines.steps.has(call.actor, step, name, since_s=since_s)]
        if len(new) < len(names) and not self._is_told:
            self._is_told = True
            self._logger.info(
                "%s has step %d of %s from before a resume; what it has is not sent again", self._name, step, call.actor
            )
        return new

    def _shown(self, actor: str, data: dict[str, Any]) -> dict[str, str]:
        assert self._tracker is not None, "names are those of an open tracker"
        return {name: name for name in data} if self._tracker.tells_actors else self._names.of(actor, data)
