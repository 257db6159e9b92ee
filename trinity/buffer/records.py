"""Experiences of a database, as a reader asks for them.

Nothing is written, and no page is known here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from sqlalchemy import ColumnElement, Engine, create_engine, exists, func, or_, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session, aliased, load_only
from sqlalchemy.pool import NullPool

from trinity.buffer.store.tables import StepExperienceModel
from trinity.common.errors import EnvironmentProblem
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.utils.log import redact
from trinity.utils.packages import install_hint, postgresql_driver

Order = Literal["newest", "worst", "best"]
_HEAVY = "experience_bytes"
LARGEST_ID = 2**31 - 1


@dataclass(frozen=True)
class Wanted:
    """Which experiences are asked for.

    Attributes:
        buffer: name of the experience buffer; empty: of all.
        states: `ready`, `claimed`, `trained` or `dropped`; none: all.
        task: the group, `batch/task`; empty: all.
        text: part of the prompt or the response; empty: anything.
        least_reward: the smallest reward; None: any, and none.
        most_reward: the largest reward; None: any, and none.
        run: `project/name`; empty: of all runs.
        step: a training step that used them; None: any, and none.
    """

    buffer: str = ""
    states: Sequence[str] = ()
    task: str = ""
    text: str = ""
    least_reward: float | None = None
    most_reward: float | None = None
    run: str = ""
    step: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return what a row has to meet."""
        row, conditions = ExperienceModel, []
        if self.buffer:
            conditions.append(row.buffer == self.buffer)
        if self.run:
            conditions.append(row.run == self.run)
        if self.step is not None:
            used = aliased(StepExperienceModel)
            same = [getattr(used, name) == getattr(row, name) for name in ("run", "stage", "buffer", "uid")]
            conditions.append(exists().where(used.step == self.step, *same))
        if self.states:
            conditions.append(row.state.in_(self.states))
        if self.task:
            conditions.append(row.task_id == self.task)
        if self.text:
            texts = (row.prompt_text, row.response_text)
            conditions.append(or_(*(text.contains(self.text, autoescape=True) for text in texts)))
        if self.least_reward is not None:
            conditions.append(row.reward >= self.least_reward)
        if self.most_reward is not None:
            conditions.append(row.reward <= self.most_reward)
        return conditions


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
        self.count(Wanted())

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def count(self, wanted: Wanted) -> int:
        """Return the number of experiences."""
        with self._session() as session:
            return int(session.scalar(select(func.count(ExperienceModel.id)).where(*wanted.conditions())) or 0)

    def page(
        self, wanted: Wanted, *, number: int, size: int, order: Order = "newest", is_whole: bool = False
    ) -> list[ExperienceModel]:
        """Return experiences, in the order that is asked for.

        Args:
            wanted: which ones.
            number: of the page, from 0.
            size: experiences on a page.
            order: which come first; without a reward, last.
            is_whole: with their payload.
        """
        row = ExperienceModel
        by = {"newest": [], "worst": [row.reward.asc().nulls_last()], "best": [row.reward.desc().nulls_last()]}[order]
        asked = select(row).where(*wanted.conditions()).order_by(*by, row.id.desc())
        with self._session() as session:
            page = asked.offset(number * size).limit(size)
            return list(session.scalars(page if is_whole else page.options(*_LIGHT)))

    def after(self, wanted: Wanted, last: int, *, size: int) -> list[ExperienceModel]:
        """Return experiences and their payloads in the order of the log.

        Args:
            wanted: which ones.
            last: they have larger ids; 0: from the first.
            size: how many at most.
        """
        row = ExperienceModel
        with self._session() as session:
            found = select(row).where(row.id > last, *wanted.conditions()).order_by(row.id).limit(size)
            return list(session.scalars(found))

    def one(self, number: int) -> ExperienceModel | None:
        """Return the experience with this id and its payload, if it is there."""
        if number > LARGEST_ID:
            return None
        with self._session() as session:
            return session.get(ExperienceModel, number)

    def group(self, row: ExperienceModel, *, most: int) -> list[ExperienceModel]:
        """Return all experiences of a task, by run and turn, without payloads.

        Args:
            row: one of them.
            most: of them.
        """
        table = ExperienceModel
        same = [getattr(table, name) == getattr(row, name) for name in ("run", "stage", "buffer", "task_id")]
        asked = select(table).where(*same).order_by(table.run_id, table.id).limit(most)
        with self._session() as session:
            return list(session.scalars(asked.options(*_LIGHT)))

    def _session(self) -> _Asking:
        return _Asking(self._engine, self.url)


_LIGHT = (
    load_only(
        *(getattr(ExperienceModel, column.key) for column in ExperienceModel.__table__.columns if column.key != _HEAVY)
    ),
)


class _Asking(Session):
    """A session whose errors name the database.

    What it gave stays readable after it.
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
            return create_engine(parsed.set(drivername=f"postgresql+{driver}"), pool_pre_ping=True)
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
    return create_engine(
        "sqlite://",
        poolclass=NullPool,
        creator=lambda: sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, check_same_thread=False),
    )


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
