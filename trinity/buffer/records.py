"""Queries for the experiences of a database.

The database is only read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from sqlalchemy import ColumnElement, Engine, and_, create_engine, event, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session, lazyload
from sqlalchemy.pool import NullPool

from trinity.buffer import search
from trinity.buffer.store import fates
from trinity.buffer.store.dialect import at_one_time
from trinity.buffer.store.scope import Scope
from trinity.buffer.store.tables import FATE, ProducerModel, StepExperienceModel, TrainStepModel
from trinity.buffer.store.types import Fates
from trinity.buffer.wanted import Wanted
from trinity.common.errors import EnvironmentProblem
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.utils.log import redact
from trinity.utils.packages import install_hint, postgresql_driver

Order = Literal["newest", "worst", "best"]
LARGEST_ID = 2**31 - 1
PAGE_BYTES = 64 * 2**20
"""Most bytes of payloads that are read at once: 512 rollouts with images may have gigabytes."""


class Records:
    """The table `experience` of a database, opened for reading.

    Args:
        url: SQLAlchemy URL of SQLite or PostgreSQL, or the path of an SQLite file.

    Raises:
        EnvironmentProblem: there is no such database, or it has no such table (E3435); a driver is not installed
            (E3301).
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = _reading_engine(url)
        with self._session() as session:
            session.execute(select(ExperienceModel).limit(1))

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def search(self, wanted: Wanted, *, most: int = search.MOST, seconds: float = search.SECONDS) -> search.Found:
        """Return the ids of the newest wanted experiences; see `search`."""
        with self._session() as session:
            return search.search(session, wanted, most=most, seconds=seconds)

    def of_ids(self, ids: Sequence[int]) -> list[ExperienceModel]:
        """Return experiences without payloads, the newest first."""
        row = ExperienceModel
        with self._session() as session:
            return list(session.scalars(select(row).where(row.id.in_(ids)).order_by(row.id.desc()).options(_LIGHT)))

    def page(
        self, wanted: Wanted, *, number: int, size: int, order: Order = "newest", is_whole: bool = False
    ) -> list[ExperienceModel]:
        """Return experiences, in the order that is asked for.

        Args:
            wanted: which ones.
            number: of the page, from 0.
            size: experiences on a page.
            order: which come first; by reward, experiences without one come last.
            is_whole: with their payload.
        """
        row = ExperienceModel
        by = {"newest": [], "worst": [row.reward.asc().nulls_last()], "best": [row.reward.desc().nulls_last()]}[order]
        asked = select(row).where(*wanted.conditions()).order_by(*by, row.id.desc())
        with self._session() as session:
            page = asked.offset(number * size).limit(size)
            return list(session.scalars(page if is_whole else page.options(_LIGHT)))

    def after(self, wanted: Wanted, last: int, *, size: int) -> list[ExperienceModel]:
        """Return experiences and their payloads in the order of the log.

        Fewer than `size` are returned if their payloads would take more than `PAGE_BYTES`, but at least one.

        Args:
            wanted: which ones.
            last: only experiences with larger ids are returned; 0: all.
            size: how many at most.
        """
        row = ExperienceModel
        conditions = (row.id > last, *wanted.conditions())
        sizes = select(row.id, row.payload_bytes).where(*conditions).order_by(row.id).limit(size)
        with self._session() as session:
            end, total = last, 0
            for number, payload in session.execute(sizes):
                total += payload or 0
                if total > PAGE_BYTES and end != last:
                    break
                end = number
            return list(session.scalars(select(row).where(row.id <= end, *conditions).order_by(row.id)))

    def one(self, number: int) -> ExperienceModel | None:
        """Return the experience with this id and its payload, if it is there."""
        if number > LARGEST_ID:
            return None
        with self._session() as session:
            return session.get(ExperienceModel, number)

    def group(self, row: ExperienceModel, *, most: int) -> list[ExperienceModel]:
        """Return a group's experiences, by rollout and turn, without payloads.

        Args:
            row: one of them.
            most: largest number of them; those appended nearest to `row` are chosen.
        """
        return self._near(row, ("stage", "buffer"), most=most)

    def rollout(self, row: ExperienceModel, *, most: int) -> list[ExperienceModel]:
        """Return the turns of a rollout, without payloads.

        Args:
            row: one of them.
            most: largest number of them; those appended nearest to `row` are chosen.
        """
        return self._near(row, ("stage", "buffer", "run_id"), most=most)

    def whole(self, rows: Sequence[ExperienceModel]) -> list[ExperienceModel]:
        """Return experiences with their payloads, in this order.

        The list is empty if the payloads together would take more than `PAGE_BYTES`.
        """
        if sum(row.payload_bytes or 0 for row in rows) > PAGE_BYTES:
            return []
        with self._session() as session:
            found = session.scalars(select(ExperienceModel).where(ExperienceModel.id.in_([row.id for row in rows])))
            by_id = {row.id: row for row in found}
        return [by_id[row.id] for row in rows if row.id in by_id]

    def of_step(self, run: str, step: int, *, buffer: str) -> list[ExperienceModel]:
        """Return what a training step used, in the order of its batch."""
        used = StepExperienceModel
        return self._used(used.run == run, used.buffer == buffer, used.step == step)

    def taken(self, job: str, step: int, *, buffer: str) -> list[ExperienceModel]:
        """Return what a training step of another job took from a queue.

        Args:
            job: name of that consumer.
            step: its training step.
            buffer: name of the queue.
        """
        used = StepExperienceModel
        return self._used(used.consumer == job, used.buffer == buffer, used.step == step)

    def steps(self, run: str, *, buffer: str) -> list[int]:
        """Return the training steps of a run that used experiences of a buffer."""
        row = TrainStepModel
        asked = select(row.step).where(row.run == run, row.buffer == buffer, row.num_experiences > 0)
        with self._session() as session:
            return sorted(set(session.scalars(asked)))

    def explored(
        self, run: str, explore_step: int, *, buffer: str, producer: str | None = None
    ) -> list[ExperienceModel]:
        """Return all experiences of an explore step, in the order of the log.

        They are those of one producer, or of all.
        """
        row = ExperienceModel
        own = [row.run == run, row.buffer == buffer, row.explore_step == explore_step]
        own += [] if producer is None else [row.producer == producer]
        with self._session() as session:
            return list(session.scalars(select(row).where(*own).order_by(row.id)))

    def fates(self, run: str) -> dict[str, Fates]:
        """Return what happened to the rollouts of a run, by buffer.

        It is empty for a database of a version that did not count them.

        Raises:
            StoreError: the numbers of a buffer do not add up (E5213).
        """
        row = ProducerModel
        with self._session(), self._engine.connect() as plain:
            connection = at_one_time(plain)
            if not inspect(connection).has_table(FATE.name):
                return {}
            scopes = connection.execute(
                select(row.stage, row.buffer).where(row.run == run).distinct().order_by(row.buffer)
            )
            return {buffer: fates.of_buffer(connection, Scope(run, stage, buffer)) for stage, buffer in scopes.all()}

    def _near(self, row: ExperienceModel, names: Sequence[str], *, most: int) -> list[ExperienceModel]:
        """Return experiences of a task that agree with `row` in these columns.

        The index on tasks finds those appended just before and after `row`, however many the task has.
        """
        table = ExperienceModel
        # The run as an expression: no index that begins with the run is used, whose rows would be sorted by id.
        same = [table.task_id == row.task_id, table.run.concat("") == row.run]
        asked = select(table).where(*same, *(getattr(table, name) == getattr(row, name) for name in names))
        with self._session() as session:
            older = asked.where(table.id < row.id).order_by(table.id.desc())
            later = asked.where(table.id >= row.id).order_by(table.id)
            before, after = (list(session.scalars(part.limit(most).options(_LIGHT))) for part in (older, later))
        number = min(len(before), max(most // 2, most - len(after)))
        return sorted([*before[:number], *after[: most - number]], key=lambda each: (each.run_id, each.id))

    def _used(self, *conditions: ColumnElement[bool]) -> list[ExperienceModel]:
        row, used = ExperienceModel, StepExperienceModel
        same = [getattr(used, name) == getattr(row, name) for name in ("run", "stage", "buffer", "uid")]
        with self._session() as session:
            return list(session.scalars(select(row).join(used, and_(*same)).where(*conditions).order_by(used.pos)))

    def _session(self) -> _Asking:
        return _Asking(self._engine, self.url)


_LIGHT = lazyload(ExperienceModel.blob)


class _Asking(Session):
    """A session whose errors name the database.

    Objects that it returned can be read after it is closed.
    """

    def __init__(self, engine: Engine, url: str) -> None:
        super().__init__(engine, expire_on_commit=False)
        self._url = url

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, place: object) -> None:
        super().__exit__(kind, error, place)
        if isinstance(error, SQLAlchemyError):
            cause = getattr(error, "orig", None) or error
            raise EnvironmentProblem(
                f"the experiences of {redact(self._url)} cannot be read: {cause}; give the database of a run or of "
                "`trinity debug --module workflow`",
                code="E3435",
            ) from error


def _reading_engine(url: str) -> Engine:
    parsed = _parsed(url)
    driver = postgresql_driver(parsed.drivername + "://")
    if driver is not None:
        try:
            engine = create_engine(parsed.set(drivername=f"postgresql+{driver}"), pool_pre_ping=True)
            event.listen(engine, "connect", _show_as_today)
            return engine
        except ImportError as error:
            raise EnvironmentProblem(
                f"{parsed.render_as_string(hide_password=True)} needs the package {driver}, which is not installed; "
                f"run {install_hint('postgres')}",
                code="E3301",
            ) from error
    file = Path(parsed.database or "").absolute()
    if not file.is_file():
        raise EnvironmentProblem(
            f"there is no database {file}; give the file that `trinity validate` names for a run, or the one that "
            "`trinity debug --module workflow` wrote",
            code="E3435",
        )
    engine = create_engine(
        "sqlite://",
        poolclass=NullPool,
        creator=lambda: sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, check_same_thread=False),
    )
    event.listen(engine, "connect", _show_as_today)
    return engine


def _show_as_today(connection: Any, _: object) -> None:
    """Show a log that an older program made as one of this version.

    An older log has the payloads in the rows of `experience`. Temporary views show them in a table of their own. The
    views belong to this connection alone, and the database does not change.
    """
    is_sqlite = isinstance(connection, sqlite3.Connection)
    cursor = connection.cursor()
    cursor.execute(
        "SELECT 'main', name FROM pragma_table_info('experience')"
        if is_sqlite
        else "SELECT relnamespace::regnamespace::text, attname FROM pg_attribute JOIN pg_class c ON attrelid = c.oid "
        "WHERE c.oid = to_regclass('experience') AND attnum > 0"
    )
    columns = dict(reversed(row) for row in cursor.fetchall())
    if "experience_bytes" in columns and "payload_bytes" not in columns:
        log = f"{columns['experience_bytes']}.experience"
        blobs = f"SELECT id, experience_bytes FROM {log} WHERE experience_bytes IS NOT NULL"
        cursor.execute(f"CREATE TEMP VIEW experience_blob AS {blobs}")
        cursor.execute(f"CREATE TEMP VIEW experience AS SELECT *, length(experience_bytes) AS payload_bytes FROM {log}")
    cursor.close()
    connection.commit()


def _parsed(url: str) -> URL:
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise EnvironmentProblem(
            f"experiences are read from sqlite:///<file>, a file or postgresql://..., got {redact(url)!r}", code="E3435"
        )
    return parsed
