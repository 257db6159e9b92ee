"""Admission of rows to slots: first come first served, or in rounds.

Float sums depend on the shape of a batch, so a reproducible sample needs reproducible batches. In a round, all open
requests are ordered by the identity of their samples and fill a fixed number of slots in that order; a freed slot goes
to the next row. The order of arrival has no influence.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from trinity.engine.torch.request import Request, RunningRow


@runtime_checkable
class SlotAdmission(Protocol):
    """The rows that wait for a slot; called under the engine's lock."""

    def add(self, requests: Iterable[Request]) -> None:
        """Queue the rows of new requests."""

    def take(self, free: int, *, num_active: int, is_held: bool) -> list[RunningRow]:
        """Return the rows that get a slot now, at most `free`.

        With `is_held` no new work begins.
        """

    def close(self, request: Request) -> None:
        """Remove a request that has finished, failed or been cancelled."""

    def join(self, participant: str) -> None:
        """Make every round wait for a request of `participant`."""

    def leave(self, participant: str) -> None:
        """Stop rounds from waiting for `participant`."""

    def has_open(self, participant: str) -> bool:
        """Return whether `participant` has an open request in a round."""

    def drain(self) -> list[Request]:
        """Remove and return all requests that have a waiting row."""

    def is_ready(self, *, num_active: int) -> bool:
        """Return whether `take` would return a row if a slot were free."""


class FirstCome:
    """Admits rows in the order of arrival."""

    def __init__(self) -> None:
        self.queue: deque[RunningRow] = deque()

    def add(self, requests: Iterable[Request]) -> None:
        """Queue the rows of new requests."""
        for request in requests:
            self.queue.extend(request.rows())

    def take(self, free: int, *, num_active: int, is_held: bool) -> list[RunningRow]:
        """Return the next rows, at most `free`; none with `is_held`."""
        return [] if is_held else [self.queue.popleft() for _ in range(min(free, len(self.queue)))]

    def close(self, request: Request) -> None:
        """Remove the waiting rows of a cancelled request."""
        if request.is_cancelled:
            self.queue = deque(row for row in self.queue if row.request is not request)

    def join(self, participant: str) -> None:
        """Do nothing: there are no rounds."""

    def leave(self, participant: str) -> None:
        """Do nothing: there are no rounds."""

    def has_open(self, participant: str) -> bool:
        """Return false: there are no rounds."""
        return False

    def drain(self) -> list[Request]:
        """Remove and return all requests that have a waiting row."""
        requests = list(dict.fromkeys(row.request for row in self.queue))
        self.queue.clear()
        return requests

    def is_ready(self, *, num_active: int) -> bool:
        """Return whether a row waits."""
        return bool(self.queue)


class OneByOne(FirstCome):
    """Admits the rows of one request at a time.

    So requests that arrive meanwhile do not change its samples. For auxiliary models in deterministic mode, whose
    engines cannot take part in the rounds of the rollout model's engine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current: Request | None = None

    def take(self, free: int, *, num_active: int, is_held: bool) -> list[RunningRow]:
        """Return rows of the current request; begin the next if none is active."""
        if is_held or not self.is_ready(num_active=num_active):
            return []
        self.current = self.queue[0].request
        rows: list[RunningRow] = []
        while self.queue and self.queue[0].request is self.current and len(rows) < free:
            rows.append(self.queue.popleft())
        return rows

    def is_ready(self, *, num_active: int) -> bool:
        """Return whether a row of the current request waits, or none is active."""
        return bool(self.queue) and (num_active == 0 or self.queue[0].request is self.current)


class Rounds:
    """Admits rows in rounds, ordered by sample id.

        waiting requests --> round --> slots --> answered
                         ^         ^
                         |         +-- rows in order, one for each free slot
                         +-- when no row is active and every participant has an open request

    A request that arrives during a round waits for the next one.
    """

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.round: deque[RunningRow] = deque()
        self.participants: set[str] = set()
        self.open: Counter[str | None] = Counter()

    def add(self, requests: Iterable[Request]) -> None:
        """Keep new requests for the next round."""
        for request in requests:
            self.waiting.append(request)
            self.open[request.params.participant] += 1

    def take(self, free: int, *, num_active: int, is_held: bool) -> list[RunningRow]:
        """Return the next rows of the round; begin a round if it can start."""
        if not self.round and num_active == 0 and not is_held and self._can_start():
            rows = [row for request in self.waiting for row in request.rows()]
            rows.sort(key=lambda row: (row.sample_id, row.index, row.request.prompt))
            self.round.extend(rows)
            self.waiting.clear()
        return [self.round.popleft() for _ in range(min(free, len(self.round)))]

    def close(self, request: Request) -> None:
        """Close a request of its participant; drop its waiting rows if cancelled."""
        self.open[request.params.participant] -= 1
        if request.is_cancelled:
            self.waiting = [other for other in self.waiting if other is not request]
            self.round = deque(row for row in self.round if row.request is not request)

    def join(self, participant: str) -> None:
        """Make every round wait for a request of `participant`."""
        self.participants.add(participant)

    def leave(self, participant: str) -> None:
        """Stop rounds from waiting for `participant`."""
        self.participants.discard(participant)

    def has_open(self, participant: str) -> bool:
        """Return whether `participant` has a request that is not answered."""
        return self.open[participant] > 0

    def drain(self) -> list[Request]:
        """Remove and return all requests that have a waiting row."""
        requests = list(dict.fromkeys([*self.waiting, *(row.request for row in self.round)]))
        self.waiting.clear()
        self.round.clear()
        return requests

    def is_ready(self, *, num_active: int) -> bool:
        """Return whether a row of the round waits, or a round could begin."""
        return bool(self.round) or (num_active == 0 and self._can_start())

    def _can_start(self) -> bool:
        return bool(self.waiting) and all(self.open[name] > 0 for name in self.participants)


def make_admission(is_deterministic: bool, is_auxiliary: bool) -> SlotAdmission:
    """Return the admission for the rollout model's or an auxiliary engine."""
    if not is_deterministic:
        return FirstCome()
    return OneByOne() if is_auxiliary else Rounds()
