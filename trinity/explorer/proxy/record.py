"""The record of answered calls: durable, bounded, and rewarded later.

add --> recorded --reward--> ready --begin(N)--> of step N --finish(N)--> committed
           |                   ^                    |
           | limit             +------undo(N)-------+
           v
        dropped, counted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, select, update

from trinity.buffer.store.database import Database, reconnecting
from trinity.buffer.store.scope import chunks
from trinity.common.errors import TrinityError
from trinity.explorer.proxy.tables import CALLS, create_tables
from trinity.utils.log import get_logger

logger = get_logger("explorer")

BUSY_TIMEOUT_S = 30.0


class FeedbackError(TrinityError):
    """A reward that cannot be taken.

    Args:
        message: why, and the way out.
        status: of the HTTP answer.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, code="E5221")
        self.status = status


@dataclass(frozen=True)
class Caller:
    """What a caller says that its calls belong to.

    Attributes:
        task: its name of the task; None: every answer is a task of its own.
        run: number of the rollout of the task.
    """

    task: str | None = None
    run: int = 0


@dataclass(frozen=True)
class RecordedChoice:
    """One choice of an answer.

    Attributes:
        message_id: of the answer.
        choice: its number.
        caller: what it belongs to.
        payload: the serialized experience.
    """

    message_id: str
    choice: int
    caller: Caller
    payload: bytes


@dataclass(frozen=True)
class Rewarded:
    """What a feedback did.

    Attributes:
        updated: choices that have another reward now.
        unchanged: choices that had this reward.
    """

    updated: int
    unchanged: int


@dataclass(frozen=True)
class Counts:
    """Choices in the record.

    Attributes:
        waiting: without a reward.
        rewarded: with one, not of a commit yet.
    """

    waiting: int
    rewarded: int


class CallRecord:
    """Keeps answered calls in a database until they are committed.

    Blocking; safe to use from many threads. One process has the record of a producer.

    Args:
        url: SQLAlchemy URL, SQLite or PostgreSQL.
        run: run that the calls are of.
        producer: name of the explorer.
        limit: most uncommitted choices, beyond which those without a reward are dropped; as many committed ones stay
            known by their id.

    Attributes:
        dropped_count: choices without a reward that were dropped for newer ones.
    """

    def __init__(self, url: str, *, run: str, producer: str, limit: int) -> None:
        self.limit = limit
        self.dropped_count = 0
        self._database = Database(url, busy_timeout_s=BUSY_TIMEOUT_S, setting="explorer.db_url")
        self._owner = {"run": run, "producer": producer}

    def open(self) -> CallRecord:
        """Open or create the database; return the record.

        Raises:
            StoreError: the URL cannot be used (E5201), or the table is another program's (E5220).
            EnvironmentProblem: the file cannot be written (E3601) or is on a network file system (E3604).
        """
        self._database.open(create_tables)
        return self

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        self._database.close()

    @property
    @reconnecting
    def counts(self) -> Counts:
        """Choices that are not committed."""
        with self._database.read() as connection:
            return self._counts(connection)

    # ------------------------------------------------------------------ calls
    @reconnecting
    def add(self, choices: Sequence[RecordedChoice]) -> None:
        """Record choices in one transaction.

        Above the limit the oldest ones without a reward are dropped: counted, and warned of.

        Raises:
            StoreError: the database cannot be written; nothing is recorded.
        """
        rows = [
            {
                **self._owner,
                "message_id": each.message_id,
                "choice": each.choice,
                "task": each.caller.task,
                "run_id": each.caller.run,
                "experience_bytes": each.payload,
            }
            for each in choices
        ]
        with self._database.write() as connection:
            connection.execute(insert(CALLS), rows)
            counts = self._counts(connection)
            excess = min(counts.waiting + counts.rewarded - self.limit, counts.waiting)
            if excess > 0:
                waiting = and_(self._own, CALLS.c.step.is_(None), CALLS.c.reward.is_(None))
                oldest = select(CALLS.c.id).where(waiting).order_by(CALLS.c.id).limit(excess)
                connection.execute(delete(CALLS).where(CALLS.c.id.in_(oldest)))
        if excess > 0:
            self._note_dropped(excess)

    def _note_dropped(self, number: int) -> None:
        before, self.dropped_count = self.dropped_count, self.dropped_count + number
        if before // self.limit != self.dropped_count // self.limit or not before:
            logger.warning(
                "%d answered calls without a reward were dropped so far: the record holds %d "
                "(explorer.rollout_model.history_limit); send /feedback and /commit more often, or raise it",
                self.dropped_count,
                self.limit,
            )

    # --------------------------------------------------------------- feedback
    @reconnecting
    def reward(self, reward: float, *, message_ids: Sequence[str] | None, caller: Caller | None) -> Rewarded:
        """Give choices a reward; all of them or none.

        An id is that of an answer, or `<answer>#<choice>`. With ids, calls that belong to no task are of `caller` from
        now on; without, the reward is that of all calls of `caller`.

        Raises:
            FeedbackError: an id is not known (422), a run has no calls or not these (403), or one is committed with
                another reward (409).
        """
        with self._database.write() as connection:
            if message_ids is None:
                assert caller is not None and caller.task is not None, "a feedback names responses or a run"
                rows = self._of_caller(connection, caller)
            else:
                rows = self._of_messages(connection, list(dict.fromkeys(message_ids)))
                _refuse_foreign(rows, caller)
            _refuse_second(rows, reward)
            open_rows = {row.id: row for row in rows if row.step is None}
            values: dict[str, Any] = {"reward": reward}
            if message_ids is not None and caller is not None:
                values |= {"task": caller.task, "run_id": caller.run}
            for chunk in chunks(list(open_rows)):
                connection.execute(update(CALLS).where(CALLS.c.id.in_(chunk)).values(**values))
        updated = sum(row.reward != reward for row in open_rows.values())
        return Rewarded(updated, len(rows) - updated)

    def _of_messages(self, connection: Connection, message_ids: Sequence[str]) -> list[Row[Any]]:
        parts = [message_id.partition("#") for message_id in message_ids]
        found: dict[str, list[Row[Any]]] = {}
        for chunk in chunks([name for name, _, _ in parts]):
            for row in self._found(connection, CALLS.c.message_id.in_(chunk)):
                found.setdefault(row.message_id, []).append(row)
        rows: dict[int, Row[Any]] = {}
        for message_id, (name, _, choice) in zip(message_ids, parts, strict=True):
            named = [row for row in found.get(name, ()) if not choice or str(row.choice) == choice]
            if not named:
                raise self._unknown(f"no answer {message_id!r} is recorded", status=422)
            rows |= {row.id: row for row in named}
        return [rows[number] for number in sorted(rows)]

    def _of_caller(self, connection: Connection, caller: Caller) -> list[Row[Any]]:
        rows = self._found(connection, and_(CALLS.c.task == caller.task, CALLS.c.run_id == caller.run))
        if not rows:
            raise self._unknown(f"no call of task {caller.task!r}, run {caller.run} is recorded", status=403)
        return rows

    def _found(self, connection: Connection, condition: ColumnElement[bool]) -> list[Row[Any]]:
        names = ("id", "message_id", "choice", "task", "run_id", "reward", "step")
        columns = [CALLS.c[name] for name in names]
        return list(connection.execute(select(*columns).where(self._own, condition).order_by(CALLS.c.id)))

    def _unknown(self, message: str, *, status: int) -> FeedbackError:
        return FeedbackError(
            f"{message} here: it is of another server, or is one of the {self.dropped_count} dropped ones, "
            f"or older than the last {self.limit} committed ones (explorer.rollout_model.history_limit)",
            status=status,
        )

    # ----------------------------------------------------------------- commit
    @reconnecting
    def begun(self) -> tuple[int, list[Row[Any]]] | None:
        """Return the step that was begun and not finished, and its choices.

        There is one after a process ended within a commit.
        """
        with self._database.read() as connection:
            return self._begun(connection)

    @reconnecting
    def begin(self, step: int) -> list[Row[Any]]:
        """Make what is rewarded that of explore step `step`.

        Return its choices, in the order of the calls. No other step is begun.
        """
        ready = and_(self._own, CALLS.c.step.is_(None), CALLS.c.reward.is_not(None))
        with self._database.write() as connection:
            connection.execute(update(CALLS).where(ready).values(step=step))
            found = self._begun(connection)
        assert found is None or found[0] == step, "an earlier step is finished or undone first"
        return [] if found is None else found[1]

    def _begun(self, connection: Connection) -> tuple[int, list[Row[Any]]] | None:
        begun = and_(self._own, CALLS.c.step.is_not(None), CALLS.c.experience_bytes.is_not(None))
        rows = list(connection.execute(select(CALLS).where(begun).order_by(CALLS.c.id)))
        return (int(rows[0].step), rows) if rows else None

    @reconnecting
    def finish(self, step: int) -> None:
        """Say that the choices of `step` are in the experience store.

        Of the committed ones the last `limit` stay known, without their tokens.
        """
        committed = and_(self._own, CALLS.c.step.is_not(None), CALLS.c.experience_bytes.is_(None))
        with self._database.write() as connection:
            mine = and_(self._own, CALLS.c.step == step)
            connection.execute(update(CALLS).where(mine).values(experience_bytes=None))
            kept = select(CALLS.c.id).where(committed).order_by(CALLS.c.id.desc()).limit(1).offset(self.limit)
            oldest = connection.scalar(kept)
            if oldest is not None:
                connection.execute(delete(CALLS).where(committed, CALLS.c.id <= oldest))

    @reconnecting
    def undo(self, step: int) -> None:
        """Make the choices of `step`, which is not in the store, ready again."""
        mine = and_(self._own, CALLS.c.step == step, CALLS.c.experience_bytes.is_not(None))
        with self._database.write() as connection:
            connection.execute(update(CALLS).where(mine).values(step=None))

    # ---------------------------------------------------------------- private
    @property
    def _own(self) -> ColumnElement[bool]:
        return and_(*(CALLS.c[name] == value for name, value in self._owner.items()))

    def _counts(self, connection: Connection) -> Counts:
        has_reward = CALLS.c.reward.is_not(None)
        is_open = and_(self._own, CALLS.c.step.is_(None))  # an index has all of it
        found = connection.execute(select(has_reward, func.count()).where(is_open).group_by(has_reward))
        numbers = {bool(rewarded): int(number) for rewarded, number in found}
        return Counts(numbers.get(False, 0), numbers.get(True, 0))


def _refuse_foreign(rows: Sequence[Row[Any]], caller: Caller | None) -> None:
    """Refuse to move what belongs to a run into another one."""
    for row in rows:
        if caller is not None and row.task is not None and Caller(row.task, row.run_id) != caller:
            raise FeedbackError(
                f"response {row.message_id!r} is of task {row.task!r}, run {row.run_id}, not of task {caller.task!r}, "
                f"run {caller.run}; give its own task_id and run_id, or msg_ids alone",
                status=403,
            )


def _refuse_second(rows: Sequence[Row[Any]], reward: float) -> None:
    """Refuse another reward for what is committed, or about to be."""
    for row in rows:
        if row.step is not None and row.reward != reward:
            raise FeedbackError(
                f"response {row.message_id!r} is committed with reward {row.reward:g} (explore step {row.step}), and "
                f"cannot get {reward:g}; give other msg_ids, or a run_id of its own to what came after the commit",
                status=409,
            )
