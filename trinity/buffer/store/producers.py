"""The state of the producers, who append experiences to the store."""

from __future__ import annotations

import threading
import time
from typing import Any

from sqlalchemy import case, func, select, update

from trinity.buffer.store import ledger, staleness
from trinity.buffer.store.database import Database, reconnecting
from trinity.buffer.store.pruning import NewestSteps
from trinity.buffer.store.scope import Scope
from trinity.buffer.store.staleness import StalenessBound, UntrainedRollouts
from trinity.buffer.store.tables import ABSENT, NO_ROOM, PRODUCER, SNAPSHOT, stored_wait

POLL_S = 0.2


class ProducerBoard:
    """The part of `ExperienceStore` in which producers report their state.

    Readers and other producers read it. A queue with a capacity holds producers back:

        producer (explorer)              log                     reader (trainer)
        wait_for_room <---room--- [ waiting < capacity ] <---commit or drop---+
             |                                                                |
             +------------append------> [ waiting rows ] ------claim----------+
        while it waits: "appends nothing", so the reader takes an incomplete batch

    Args:
        database: of the store.
        capacity: experiences that may wait to be trained; None: any number.
    """

    def __init__(self, database: Database, *, capacity: int | None) -> None:
        self.capacity = capacity
        self._database = database
        self._changed = threading.Condition()
        self._scopes: dict[tuple[str, str], Scope] = {}
        self._unscheduled: set[tuple[Scope, str]] = set()

    @reconnecting
    def open_producer(
        self, buffer: str, producer: str, *, run: str, stage: str = "", is_scheduled: bool = True
    ) -> None:
        """Register `producer`, so that readers wait for it until it is closed.

        One that is not scheduled never says that it waits, so a patient reader does not wait for that (`Replay`).
        """
        scope = Scope(run, stage, buffer)
        self._scopes[buffer, producer] = scope
        if not is_scheduled:
            self._unscheduled.add((scope, producer))
        with self._database.write() as connection:
            values = {"is_open": 1, "wait_version": self._stored(None, scope, producer)}
            ledger.upsert_producer(connection, scope, producer=producer, values=values)

    @reconnecting
    def close_producer(self, buffer: str, producer: str, *, run: str, stage: str = "") -> None:
        """Announce that `producer` is finished; readers drain what is left."""
        with self._database.write() as connection:
            ledger.upsert_producer(connection, Scope(run, stage, buffer), producer=producer, values={"is_open": 0})
        self._notify()

    @reconnecting
    def producers_open(self, buffer: str, *, run: str, stage: str = "") -> int:
        """Return how many producers of the buffer are not finished."""
        with self._database.read() as connection:
            return ledger.producers(connection, Scope(run, stage, buffer), trained_version=None).open

    @reconnecting
    def finished_step(self, buffer: str, producer: str, *, run: str, stage: str = "") -> int:
        """Return the last complete explore step of `producer`, 0 without any."""
        with self._database.read() as connection:
            return ledger.finished_step(connection, Scope(run, stage, buffer), producer=producer)

    @reconnecting
    def announce_wait(
        self, buffer: str, producer: str, version: int, *, run: str | None = None, stage: str = ""
    ) -> None:
        """Announce that `producer` appends nothing before `version`.

        A reader whose trainer has published an older model version then gets an incomplete batch at once.
        Without `run`, the producer must have been opened by this store object.
        """
        scope = self._scopes[buffer, producer] if run is None else Scope(run, stage, buffer)
        with self._database.write() as connection:
            ledger.upsert_producer(connection, scope, producer=producer, values={"wait_version": version})
        self._notify()

    @reconnecting
    def note_presence(self, buffer: str, producer: str, is_there: bool, *, run: str, stage: str = "") -> None:
        """Record that an open producer has died, or that it is back after all.

        Readers and other producers do not wait for one that has died. It is back when it opens again.
        """
        found = update(PRODUCER).where(Scope(run, stage, buffer).where(PRODUCER), PRODUCER.c.producer == producer)
        gone = [stored_wait(ABSENT, is_scheduled=is_scheduled) for is_scheduled in (False, True)]
        present = [stored_wait(None, is_scheduled=is_scheduled) for is_scheduled in (False, True)]
        if is_there:
            found = found.where(PRODUCER.c.wait_version.in_(gone))
        unscheduled, scheduled = present if is_there else gone
        wait = case((PRODUCER.c.wait_version < 0, unscheduled), else_=scheduled)
        with self._database.write() as connection:
            connection.execute(found.values(wait_version=wait))
        self._notify()

    @reconnecting
    def enter_batch(
        self,
        buffer: str,
        producer: str,
        *,
        run: str,
        stage: str = "",
        version: int,
        bound: StalenessBound,
        in_flight: int = 0,
    ) -> UntrainedRollouts:
        """Record whether `producer` begins a batch; return the untrained rollouts.

        Both happen in one transaction. The producer begins a batch if `version`, which its engine serves, is new
        enough for `bound`. Otherwise, if it has no batch under way, it is recorded as waiting for
        `UntrainedRollouts.awaited_version`; steps before that version take what there is.
        """
        place: dict[str, Any] = {"producer": producer, "version": version, "bound": bound, "in_flight": in_flight}
        with self._database.write() as connection:
            found = staleness.enter_batch(connection, Scope(run, stage, buffer), **place)
        self._notify()
        return found

    @reconnecting
    def take_back(self, buffer: str, producer: str, *, run: str, after: int, stage: str = "") -> int:
        """Remove what `producer` appended in explore steps after `after`.

        Return the number of experiences. None are removed if a consumer has taken one of them.
        """
        with self._database.write() as connection:
            return ledger.take_back(connection, Scope(run, stage, buffer), producer=producer, after=after)

    @reconnecting
    def prune_waiting(self, buffer: str, producer: str, newest: NewestSteps, *, run: str, stage: str = "") -> int:
        """Drop the oldest experiences of `producer` beyond the limit of `newest`.

        This is for a log from which no consumer claims. Return the number of experiences.
        """
        with newest.counting(), self._database.write() as connection:
            return newest.prune(connection, Scope(run, stage, buffer), producer=producer)

    @reconnecting
    def producers(self, buffer: str, *, run: str, stage: str = "") -> dict[str, bool]:
        """Return by name whether each producer of the buffer is still open."""
        where = Scope(run, stage, buffer).where(PRODUCER)
        with self._database.read() as connection:
            rows = connection.execute(select(PRODUCER.c.producer, PRODUCER.c.is_open).where(where)).all()
            return {row.producer: bool(row.is_open) for row in sorted(rows)}

    @reconnecting
    def runs(self, buffer: str) -> list[tuple[str, str]]:
        """Return all runs and stages that have had a producer of the buffer."""
        found = select(PRODUCER.c.run, PRODUCER.c.stage).where(PRODUCER.c.buffer == buffer).distinct()
        with self._database.read() as connection:
            return sorted((row.run, row.stage) for row in connection.execute(found))

    @reconnecting
    def keep_snapshot(self, buffer: str, producer: str, text: str, *, run: str, stage: str = "") -> None:
        """Replace the snapshot of a producer, between two of its steps."""
        with self._database.write() as connection:
            ledger.keep_snapshot(connection, Scope(run, stage, buffer), producer=producer, text=text)

    @reconnecting
    def snapshot(self, buffer: str, producer: str, *, run: str, stage: str = "") -> str | None:
        """Return a producer's snapshot after its last finished step.

        Return None if it keeps none here.
        """
        key = (Scope(run, stage, buffer).where(SNAPSHOT), SNAPSHOT.c.producer == producer)
        with self._database.read() as connection:
            text: str | None = connection.scalar(select(SNAPSHOT.c.state).where(*key))
            return text

    @reconnecting
    def num_produced(self, buffer: str, *, run: str, stage: str = "") -> int:
        """Return the rollouts that all producers of the buffer have appended."""
        where = Scope(run, stage, buffer).where(SNAPSHOT)
        with self._database.read() as connection:
            return int(connection.scalar(select(func.sum(SNAPSHOT.c.num_rollouts)).where(where)) or 0)

    @reconnecting
    def wait_for_room(self, buffer: str, producer: str, *, timeout_s: float, run: str, stage: str = "") -> bool:
        """Wait until fewer than `capacity` experiences wait to be trained.

        Return whether that is so, after `timeout_s` at the latest. Until then readers see that `producer` appends
        nothing, and do not wait for a full batch.
        """
        scope, deadline = Scope(run, stage, buffer), time.monotonic() + timeout_s
        is_told = False
        while self.capacity is not None:
            with self._database.read() as connection:
                has_room = ledger.num_waiting(connection, scope) < self.capacity
            if has_room or not is_told:
                with self._database.write() as connection:
                    values = {"wait_version": self._stored(None if has_room else NO_ROOM, scope, producer)}
                    ledger.upsert_producer(connection, scope, producer=producer, values=values)
                is_told = True
                self._notify()
            if has_room or time.monotonic() >= deadline:
                return has_room
            with self._changed:
                if self._database.is_open:
                    self._changed.wait(min(POLL_S, max(deadline - time.monotonic(), 0.0)))
        return True

    def _stored(self, wait: int | None, scope: Scope, producer: str) -> int | None:
        """Return the `wait_version` of a producer of this object."""
        return stored_wait(wait, is_scheduled=(scope, producer) not in self._unscheduled)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
