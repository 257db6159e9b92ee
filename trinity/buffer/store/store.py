"""`ExperienceStore`: append, claim, commit; each does all or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import select, update

from trinity.buffer.store import claims, fates, ledger, replay, schema
from trinity.buffer.store.backup import JSONBackup
from trinity.buffer.store.claims import Limits
from trinity.buffer.store.database import SETTING, Database, reconnecting
from trinity.buffer.store.fates import STORE, Owner
from trinity.buffer.store.producers import POLL_S
from trinity.buffer.store.pruning import Keeping
from trinity.buffer.store.queries import StoreQueries
from trinity.buffer.store.read_decision import decide_read
from trinity.buffer.store.replay import Replay
from trinity.buffer.store.scope import Scope, of_ids
from trinity.buffer.store.tables import BLOB, EXPERIENCE
from trinity.buffer.store.types import AppendResult, Batch, ConsumerToken, Fates, num_rollouts
from trinity.buffer.store.validation import prepare
from trinity.common.errors import DataError, StarvedError
from trinity.common.experience import Experience
from trinity.common.payload import MAX_EXPERIENCE_BYTES
from trinity.common.schema.sql_schema import DROPPED, READY
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger, redact

LEASE_S = 3600.0
FIRST_POLL_S = 0.01  # first pause of a read; each further one is twice as long, up to `POLL_S`
UNREADABLE = "unreadable"

_logger = get_logger("buffer.store")


class ExperienceStore(StoreQueries):
    """One transactional log of experiences in SQLite or PostgreSQL.

    Safe to use from many threads. The states of its rows are in `claims`, with reuse in `replay`.

    Args:
        url: SQLAlchemy URL.
        kept_bytes: payloads of trained experiences that `prune` leaves; None: all of them.
        backup: text copy of what is appended.
        max_experience_bytes: larger experiences are recorded as dropped (`oversize`).
        busy_timeout_s: how long a transaction waits for another process.
        capacity: experiences that wait to be trained, beyond which `wait_for_room` waits; None: any number.
        replay: how trained experiences are used again; None: each is trained once.
        clock: seconds since 1970, for leases and pauses; None: the clock of the database.
        setting: the key or option that gave `url`, for messages.
    """

    def __init__(
        self,
        url: str,
        *,
        kept_bytes: int | None = 0,
        backup: JSONBackup | None = None,
        max_experience_bytes: int = MAX_EXPERIENCE_BYTES,
        busy_timeout_s: float = 30.0,
        capacity: int | None = None,
        replay: Replay | None = None,
        clock: Callable[[], float] | None = None,
        setting: str = SETTING,
    ) -> None:
        database = Database(url, busy_timeout_s=busy_timeout_s, clock=clock, setting=setting)
        super().__init__(database, capacity=capacity)
        self.url = url
        self.keeping = Keeping(kept_bytes)
        self.backup = backup
        self.max_experience_bytes = max_experience_bytes
        self.replay = replay

    def open(self) -> ExperienceStore:
        """Open or create the database; return the store.

        A second call does nothing.

        Raises:
            StoreError: the URL or the schema version is not usable (E5201, E5202).
            EnvironmentProblem: the file cannot be written (E3601) or is on a network file system (E3604).
        """
        if self._database.is_open:
            return self
        self._database.open(schema.create_schema)
        return self

    def close(self) -> None:
        """Close all connections and end waiting reads with an error.

        A second call does nothing.
        """
        with self._changed:
            self._database.close()
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @reconnecting
    def append(
        self,
        buffer: str,
        experiences: Sequence[Experience],
        *,
        run: str,
        producer: str,
        explore_step: int,
        stage: str = "",
        snapshot: str | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> AppendResult:
        """Append the experiences of an explore step and finish the step.

        Both happen in one transaction. Rows are sorted by id. A step that the producer has already finished does not
        change: experiences of a repeated step may differ in turns and tasks, and would be trained in addition. Ids that
        the log has are left out. An empty list records an empty step. A `snapshot` of the producer is stored with the
        step, and so are `counts`: all rollouts that it issued, by fate; None: it issued these alone.

        Raises:
            DataError: a reward is not a finite number, or two experiences have one id; nothing is appended.
            StoreError: the database cannot be written, or the fates of rollouts do not add up (E5213).
        """
        scope, owner = Scope(run, stage, buffer), Owner.producer(producer)
        tags = {**scope.values, "producer": producer, "explore_step": explore_step}
        ordered, rows = prepare(experiences, tags, max_bytes=self.max_experience_bytes)
        uids = [row["uid"] for row in rows]
        with self._database.write() as connection:
            if explore_step <= ledger.finished_step(connection, scope, producer=producer):
                own = fates.until(connection, scope, owner, step=explore_step)
                return AppendResult(0, len(rows), fates=fates.of_buffer(connection, scope, own=own))
            known = ledger.known_uids(connection, scope, uids=uids)
            new = [row for row in rows if row["uid"] not in known]
            ledger.add_rows(connection, new)
            ledger.upsert_producer(connection, scope, producer=producer, values={"finished_step": explore_step})
            ready = {row["uid"] for row in new if row["state"] == READY}
            added = num_rollouts([each for each, uid in zip(ordered, uids, strict=True) if uid in ready])
            ledger.keep_snapshot(connection, scope, producer=producer, text=snapshot, num_added=added)
            ended = fates.appended(rows, known=known, given=counts)
            own = fates.add(connection, scope, owner, step=explore_step, counts=ended)
            found = fates.of_buffer(connection, scope, own=own)
            failpoint("store.append.before_commit")
        failpoint("store.append.after_commit")
        if self.backup is not None:
            self.backup.write([experience for experience in ordered if experience.eid.uid not in known])
        self._notify()
        oversize = sum(1 for row in new if row["state"] == DROPPED)
        if oversize:
            _logger.warning("%d experiences above %d bytes were set aside", oversize, self.max_experience_bytes)
        return AppendResult(len(new) - oversize, len(rows) - len(new), oversize, found)

    def complete_backup(
        self, buffer: str, *, run: str, producer: str, stage: str = "", backup: JSONBackup | None = None
    ) -> int:
        """Append to a text copy the experiences that are only in the log.

        The copy is the store's, or `backup`; a run may have ended between writing both. Return the number of lines.

        Raises:
            StoreError: the log or the copy cannot be used.
        """
        backup = backup or self.backup
        if backup is None:
            return 0
        known, rows = backup.known_uids(), EXPERIENCE.c
        own = Scope(run, stage, buffer).where(EXPERIENCE) & (rows.producer == producer)
        with self._database.read() as connection:
            there = connection.execute(select(rows.id, rows.uid).where(own).order_by(rows.id))
            missing = [row.id for row in there if row.uid not in known]
            payloads = (connection.scalar(select(BLOB.c.experience_bytes).where(BLOB.c.id == id_)) for id_ in missing)
            return backup.write(Experience.deserialize(payload) for payload in payloads if payload is not None)

    @reconnecting
    def open_consumer(self, buffer: str, consumer: str, *, run: str, cut: int, stage: str = "") -> ConsumerToken:
        """Return a token to claim as `consumer`; its older tokens become invalid.

        Rows that the consumer claimed, or trained or dropped in steps after `cut`, are ready again.

        Raises:
            StoreError: the payload of such a row was pruned (E5205).
        """
        with self._database.write() as connection:
            epoch = ledger.open_consumer(connection, Scope(run, stage, buffer), consumer=consumer, cut=cut)
        self._notify()
        return ConsumerToken(buffer, consumer, run, stage, epoch)

    def claim(
        self,
        token: ConsumerToken,
        n: int,
        *,
        lease_s: float = LEASE_S,
        at_least: int = 0,
        max_version: int | None = None,
        whole_rollouts: bool = False,
    ) -> list[Experience]:
        """Claim the first `n` ready experiences in the order of the log.

        None are claimed if fewer than `at_least` are ready.

        Args:
            token: from `open_consumer`.
            n: how many at most.
            lease_s: seconds after which another consumer may take them.
            at_least: claim none if fewer are ready.
            max_version: do not claim experiences of newer weights.
            whole_rollouts: count rollouts, each with all of its experiences.

        Raises:
            StoreError: the token is fenced (E5203), or its lease ended before the payloads were read (E5204).
            DataError: a payload is damaged (E5101); that row is set aside as dropped (`unreadable`).
        """
        return self._claim(token, Limits(n, at_least, max_version, whole_rollouts), lease_s=lease_s)[0]

    def _claim(self, token: ConsumerToken, limits: Limits, *, lease_s: float) -> tuple[list[Experience], int]:
        """Return what was claimed, and the number of evicted experiences.

        Experiences are evicted from a full replay buffer.
        """
        ids, evicted = self._claimed_ids(token, limits, lease_s=lease_s)
        failpoint("store.claim.after_commit")
        experiences = []
        for row in self._with_payloads(token, ids):
            try:
                payload = row.experience_bytes or b""
                experiences.append(Experience.deserialize(payload, max_bytes=self.max_experience_bytes))
            except DataError as error:
                self._set_aside(token, ids, bad=row.id)
                raise DataError(
                    f"row {row.id} ({row.uid}) of {redact(self.url)}: {error.args[0]}; it was set aside", code="E5101"
                ) from error
        if evicted:
            self._notify()
        return experiences, evicted

    @reconnecting
    def _claimed_ids(self, token: ConsumerToken, limits: Limits, *, lease_s: float) -> tuple[list[int], int]:
        with self._database.write() as connection:
            ledger.verify_token(connection, token)
            if self.replay is None or not limits.whole_rollouts:
                return claims.claim(connection, token, limits, lease_s=lease_s), 0
            return replay.claim(connection, token, limits, replay=self.replay, lease_s=lease_s)

    @reconnecting
    def _with_payloads(self, token: ConsumerToken, ids: Sequence[int]) -> Sequence[Any]:
        """Return (id, uid, payload) of rows that `token` has claimed.

        Others may write meanwhile, but claimed rows do not change unless the lease has ended (E5204).
        """
        with self._database.read() as connection:
            ledger.verify_token(connection, token)
            return claims.with_payloads(connection, token, ids)

    @reconnecting
    def release(self, token: ConsumerToken, uids: Sequence[str]) -> None:
        """Give up claims: experiences are ready again, or trained as before.

        Raises:
            StoreError: fenced (E5203), or a row is not claimed (E5204).
        """
        values = ledger.unclaimed(Scope.of(token), consumer=token.consumer)
        with self._database.write() as connection:
            ledger.verify_token(connection, token)
            ledger.end_claims(connection, token, uids=uids, values=values, what="release")
        self._notify()

    @reconnecting
    def commit_step(self, token: ConsumerToken, step: int, uids: Sequence[str]) -> Fates:
        """Record that training step `step` used `uids`, in that order.

        The experiences must be claimed. Return what happened to the buffer's rollouts; `own` is of this consumer.

        Raises:
            StoreError: fenced (E5203), a row is not claimed (E5204), another commit of that step (E5207), or the fates
                of rollouts do not add up (E5213).
        """
        scope = Scope.of(token)
        with self._database.write() as connection:
            ledger.verify_token(connection, token)
            ledger.commit_step(connection, token, step=step, uids=uids)
            own = fates.until(connection, scope, Owner.consumer(token.consumer), step=step)
            found = fates.of_buffer(connection, scope, own=own)
            failpoint("store.commit_step.before_commit")
        failpoint("store.commit_step.after_commit")
        self._notify()
        return found

    @reconnecting
    def drop(self, token: ConsumerToken, uids: Sequence[str], reason: str) -> None:
        """Drop claimed experiences with a reason.

        Resuming before the step under way makes them ready again. Those that were trained before stay trained, and are
        not used again.

        Raises:
            StoreError: fenced (E5203), or a row is not claimed (E5204).
        """
        with self._database.write() as connection:
            ledger.verify_token(connection, token)
            step = ledger.last_step(connection, token) + 1
            new = uids if self.replay is None else replay.retire(connection, token, uids=uids)
            values = {"state": DROPPED, "drop_reason": reason, "trained_step": step, "lease_until": None}
            ledger.end_claims(connection, token, uids=new, values=values, what="drop")
            ended = {fates.of_drop(reason): fates.num_first(connection, Scope.of(token), uids=new)}
            fates.add(connection, Scope.of(token), Owner.consumer(token.consumer), step=step, counts=ended)
        self._notify()

    @reconnecting
    def prune(self, token: ConsumerToken, up_to_step: int) -> int:
        """Remove payloads used at or before `up_to_step`; return how many.

        `up_to_step` is the step of the oldest retained checkpoint: no resume needs the payloads of experiences trained
        or dropped until then. Payloads that may be used again are kept, and the newest others up to `kept_bytes`.
        """
        with self.keeping.counting(), self._database.write() as connection:
            ledger.verify_token(connection, token)
            return self.keeping.prune(connection, token, up_to_step=up_to_step, is_reused=self.replay is not None)

    def read_batch(
        self, token: ConsumerToken, n: int, *, timeout_s: float, trained_version: int | None = None
    ) -> Batch:
        """Return `n` claimed rollouts with all of their experiences.

        An incomplete batch is returned at the deadline, and at once when all producers are finished or wait for weights
        newer than `trained_version` (then possibly an empty one: the step has no signal).

        Args:
            token: from `open_consumer`.
            n: rollouts of a full batch.
            timeout_s: deadline from now, `max_read_timeout`.
            trained_version: newest version that this trainer has published; experiences of newer weights,
                which only a run that was rewound can hold, are not claimed.

        Raises:
            StarvedError: nothing at the deadline although producers are open.
            StoreError: fenced, closed while waiting, or the database cannot be used.
        """
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_POLL_S
        while True:
            is_last = time.monotonic() >= deadline
            batch = self._try_read(token, n, is_last=is_last, trained_version=trained_version)
            if batch is not None:
                return batch
            if is_last:
                raise StarvedError(
                    f"no experience arrived in buffer {token.buffer!r} within {timeout_s:g} s although its producers "
                    "are not finished; look at the explorer's log, or raise "
                    "buffer.trainer_input.experience_buffer.max_read_timeout"
                )
            with self._changed:
                if self._database.is_open:
                    self._changed.wait(min(pause_s, max(deadline - time.monotonic(), 0.0)))
            pause_s = min(2 * pause_s, POLL_S)

    @reconnecting
    def _try_read(self, token: ConsumerToken, n: int, *, is_last: bool, trained_version: int | None) -> Batch | None:
        own: dict[str, Any] = {"is_last": is_last, "replay": self.replay, "capacity": self.capacity}
        found = decide_read(self._database, token, n, version=trained_version, **own)
        if found.is_over:
            return Batch([], is_complete=False, is_closed=True)
        if not found.is_due:
            return None
        limits = Limits(n, 0 if found.takes_less else n, trained_version, whole_rollouts=True)
        experiences, evicted = self._claim(token, limits, lease_s=LEASE_S)
        if not experiences and not found.is_idle:
            return None
        is_complete = num_rollouts(experiences) == n
        return Batch(experiences, is_complete, not experiences and found.is_closed, evicted)

    @reconnecting
    def _set_aside(self, token: ConsumerToken, ids: list[int], *, bad: int) -> None:
        ready = ledger.unclaimed(Scope.of(token), consumer=token.consumer)
        dropped = {"state": DROPPED, "drop_reason": UNREADABLE, "lease_until": None}
        with self._database.write() as connection:
            ledger.verify_token(connection, token)
            mine = claims.held_by(token)
            for rows in of_ids(EXPERIENCE.c.id, [i for i in ids if i != bad]):
                connection.execute(update(EXPERIENCE).where(rows, mine).values(**ready))
            if connection.execute(update(EXPERIENCE).where(EXPERIENCE.c.id == bad, mine).values(**dropped)).rowcount:
                lost = fates.num_first_unused(connection, [bad])
                fates.add(connection, Scope.of(token), STORE, step=0, counts={fates.failed(UNREADABLE): lost})
