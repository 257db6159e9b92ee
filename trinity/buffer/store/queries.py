"""Queries for the rows and steps of a store."""

from __future__ import annotations

from sqlalchemy import select

from trinity.buffer.store import dialect, fates, ledger
from trinity.buffer.store.database import reconnecting
from trinity.buffer.store.producers import ProducerBoard
from trinity.buffer.store.scope import Scope
from trinity.buffer.store.tables import TRAIN_STEP
from trinity.buffer.store.types import BufferCounts, ConsumerToken, Fates


class StoreQueries(ProducerBoard):
    """The part of `ExperienceStore` that only reads."""

    @reconnecting
    def last_trainer(self, buffer: str, *, run: str, stage: str = "") -> str | None:
        """Return the consumer that committed the newest training step.

        Return None before the first. Claims and uses are recorded under the consumer's name, so a resumed run must use
        the same name. Other jobs that train on the buffer as a queue of demonstrations have a slash in their names, and
        are left out.
        """
        steps = TRAIN_STEP.c
        known = select(steps.consumer).where(Scope(run, stage, buffer).where(TRAIN_STEP), ~steps.consumer.contains("/"))
        with self._database.read() as connection:
            name: str | None = connection.scalar(known.order_by(steps.committed_at.desc()).limit(1))
            return name

    @reconnecting
    def step_uids(self, token: ConsumerToken, step: int) -> list[str] | None:
        """Return the ids that a committed training step used, in order.

        Return None if the step is not committed.
        """
        with self._database.read() as connection:
            return ledger.step_uids(connection, token, step=step)

    @reconnecting
    def counts(self, buffer: str, run: str, stage: str = "") -> BufferCounts:
        """Return the number of experiences by state.

        Their sum is the number generated.
        """
        with self._database.read() as connection:
            return ledger.counts(connection, Scope(run, stage, buffer))

    @reconnecting
    def fates(self, buffer: str, *, run: str, stage: str = "") -> Fates:
        """Return what happened to all rollouts of the buffer.

        Raises:
            StoreError: the numbers do not add up (E5213).
        """
        with self._database.read() as connection:
            return fates.of_buffer(dialect.at_one_time(connection), Scope(run, stage, buffer))
