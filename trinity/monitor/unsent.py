"""Lines of a shared file that a place does not have yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trinity.monitor.jsonl import locked
from trinity.monitor.sent_steps import SentSteps

MAX_BYTES = 1 << 20  # in memory at once, and read under one lock
HEAD_BYTES = 192


@dataclass(frozen=True)
class LinePlace:
    """Where a line of the file ends, and how to know that it is still there.

    Attributes:
        offset: after the line, bytes.
        begin: of the line, bytes.
        head: its first characters, which tell who wrote it and when.
    """

    offset: int = 0
    begin: int = 0
    head: str = ""

    def holds(self, file: BinaryIO) -> bool:
        """Return whether the line is there."""
        file.seek(self.begin)
        return file.read(HEAD_BYTES)[: self.offset - self.begin] == self.head.encode("latin-1")


@dataclass(frozen=True)
class LoggedCall:
    """What one call of `Monitor.log` or `Monitor.log_table` wrote.

    Attributes:
        actor: who called it.
        time_s: when, in seconds since 1970; of an actor no two calls have the same.
        lines: the lines, at least one.
        place: after the last of them.
    """

    actor: str
    time_s: float
    lines: tuple[dict[str, Any], ...]
    place: LinePlace


class UnsentLines:
    """Reads the calls of all actors that are later than those sent.

    A resume replaces the file and shortens it, so that an offset alone says nothing: the time of an actor's last sent
    call does, as an actor's later calls have later times.

    Args:
        path: the file; it need not exist yet.
        kept: a `state` of before, of this process or another.

    Attributes:
        sent: time of the last sent call of each actor, seconds since 1970.
        steps: what the place has.
    """

    def __init__(self, path: Path, kept: Mapping[str, Any] | None = None) -> None:
        kept = kept or {}
        self.path = path
        self.sent: dict[str, float] = {str(actor): float(time_s) for actor, time_s in kept.get("sent", {}).items()}
        self.steps = SentSteps(kept.get("steps"))
        self._place = LinePlace(**kept.get("place", {}))

    @property
    def state(self) -> dict[str, Any]:
        """What continues here, as plain values."""
        return {"sent": dict(self.sent), "place": asdict(self._place), "steps": self.steps.state}

    def restart(self, sent: Mapping[str, float]) -> None:
        """Begin again, after what a place says it has of each actor."""
        self.sent, self._place = dict(sent), LinePlace()
        self.steps.go_back(sent)

    def read(self) -> list[LoggedCall]:
        """Return the next unsent calls, in the order of the file.

        They are of about `MAX_BYTES` at most; none: there are no more. Damaged lines are passed over.

        Raises:
            DeadlineError: the file is locked for long.
            OSError: it cannot be read.
        """
        calls: list[LoggedCall] = []
        is_end = not self.path.exists()
        while not calls and not is_end:
            with locked(self.path), open(self.path, "rb") as file:  # not for long: the run writes under this lock
                is_end = self._read_some(file, calls)
        return calls

    def _read_some(self, file: BinaryIO, calls: list[LoggedCall]) -> bool:
        """Append the calls of some lines; return whether the file ends there."""
        if not self._place.holds(file):
            self._place = LinePlace()
        begin = file.seek(self._place.offset)
        limit = begin + MAX_BYTES
        for line in iter(file.readline, b""):
            if not line.endswith(b"\n"):
                break
            place = LinePlace(begin + len(line), begin, line[:HEAD_BYTES].decode("latin-1"))
            begin = place.offset
            record, last = _record(line), calls[-1] if calls else None
            if record is None or record["time"] <= self.sent.get(record["actor"], 0.0):
                if last is None:
                    self._place = place  # nothing before it waits
            elif last is not None and (last.actor, last.time_s) == (record["actor"], record["time"]):
                calls[-1] = LoggedCall(last.actor, last.time_s, (*last.lines, record), place)
                continue
            elif last is not None and begin > limit:
                return False
            else:
                calls.append(LoggedCall(record["actor"], record["time"], (record,), place))
            if begin > limit and not calls:
                return False
        return True

    def mark(self, call: LoggedCall) -> None:
        """Count a call as sent."""
        self.sent[call.actor] = call.time_s
        self._place = call.place

    def count(self) -> int:
        """Return how many calls were not sent."""
        other, number = UnsentLines(self.path, self.state), 0
        while calls := other.read():
            number += len(calls)
            for call in calls:
                other.mark(call)
        return number


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line that has what every line has."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(record, dict) and isinstance(record.get("actor"), str)
    return record if is_whole and isinstance(record.get("time"), int | float) else None
