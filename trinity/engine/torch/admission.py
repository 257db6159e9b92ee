"""Who gets a slot next: first come first served, or the rounds of deterministic mode.

Float sums depend on the shape of a batch, so a reproducible sample needs reproducible batches. In rounds, all open
requests are ordered by the identity of their samples, fill a fixed number of slots in that order, and a freed slot
goes to the next of them. The order of arrival decides nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from trinity.engine.torch.request import Request, RunningRow


@runtime_checkable
class SlotAdmission(Protocol):
    """The rows that wait for a slot. Called under the engine's lock."""

    def add(self, requests: Iterable[Request]) -> None:
        """Queue the rows of new requests."""

    def take(self, free: int, *, num_active: int, is_held: bool) -> list[RunningRow]:
        """Return the rows that get a slot now, at most `free`; with `is_held` no new work is begun."""

    def close(self, request: Request) -> None:
        """Forget a request that is finished, failed or cancelled."""

    def join(self, participant: str) -> None:
        """Count `participant` among those whose requests a round waits for."""

    def leave(self, participant: str) -> None:
        """Do not wait for `participant` any more."""

    def has_open(self, participant: str) -> bool:
        """Return whether a round holds, or waits with, a request of `participant`."""

    def drain(self) -> list[Request]:
        """Return and forget all requests that have a row waiting."""

    def is_ready(self, *, num_active: int) -> bool:
        """Return whether `take` would give a row if a slot were free."""


class FirstCome:
    """Rows in the order of arrival."""

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
        """Drop the waiting rows of a request that is over."""
        if request.is_cancelled:
            self.queue = deque(row for row in self.queue if row.request is not request)

    def join(self, participant: str) -> None:
        """Do nothing: nobody is waited for."""

    def leave(self, participant: str) -> None:
        """Do nothing: nobody is waited for."""

    def has_open(self, participant: str) -> bool:
        """Return false: there are no rounds."""
        return False

    def drain(self) -> list[Request]:
        """Return and forget all requests that have a row waiting."""
        requests = list(dict.fromkeys(row.request for row in self.queue))
        self.queue.clear()
        return requests

    def is_ready(self, *, num_active: int) -> bool:
        """Return whether a row waits."""
        return bool(self.queue)


class OneByOne(FirstCome):
    """The rows of one request at a time, so that what else is asked for meanwhile changes no sample.

    For engines beside the rollout model in deterministic mode: nobody can wait there for a round of the other engine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current: Request | None = None

    def take(self, free: int, *, num_active: int, is_held: bool) -> list[RunningRow]:
        """Return the next rows of the request under way; with none active, begin the next request."""
        if is_held or not self.is_ready(num_active=num_active):
            return []
        self.current = self.queue[0].request
        rows: list[RunningRow] = []
        while self.queue and self.queue[0].request is self.current and len(rows) < free:
            rows.append(self.queue.popleft())
        return rows

    def is_ready(self, *, num_active: int) -> bool:
        """Return whether a row of the request under way waits, or nothing is under way."""
        return bool(self.queue) and (num_active == 0 or self.queue[0].request is self.current)


class Rounds:
    """Rows in the order of their sample ids, in rounds that start when every participant has asked."""

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
        """Return the next rows of the round; begin a round if none is under way and all participants have asked."""
        if not self.round and num_active == 0 and not is_held and self._can_start():
            rows = [row for request in self.waiting for row in request.rows()]
            rows.sort(key=lambda row: (row.sample_id, row.index, row.request.prompt))
            self.round.extend(rows)
            self.waiting.clear()
        return [self.round.popleft() for _ in range(min(free, len(self.round)))]

    def close(self, request: Request) -> None:
        """Drop the waiting rows of a request that is over; its participant has one open request less."""
        self.open[request.params.participant] -= 1
        if request.is_cancelled:
            self.waiting = [other for other in self.waiting if other is not request]
            self.round = deque(row for row in self.round if row.request is not request)

    def join(self, participant: str) -> None:
        """Let rounds wait for a request of `participant`."""
        self.participants.add(participant)

    def leave(self, participant: str) -> None:
        """Do not let rounds wait for `participant` any more."""
        self.participants.discard(participant)

    def has_open(self, participant: str) -> bool:
        """Return whether `participant` has asked and has not been answered."""
        return self.open[participant] > 0

    def drain(self) -> list[Request]:
        """Return and forget all requests that have a row waiting."""
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
    """Return who decides for the rollout model's engine, or for an auxiliary model's."""
    if not is_deterministic:
        return FirstCome()
    return OneByOne() if is_auxiliary else Rounds()
