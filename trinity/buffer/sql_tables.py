"""Database tables as datasets of tasks, conversations or experiences.

Nothing here imports torch, so that `trinity validate` can read the tables; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, Inspector, LargeBinary, TableClause, column, create_engine, func, inspect, select, table
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from trinity.buffer.dataset import ListTable
from trinity.buffer.rows import BadRow, DataRow
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.utils.database_errors import ServerWait
from trinity.utils.log import get_logger, redact
from trinity.utils.nested import as_written
from trinity.utils.packages import install_hint, postgresql_driver

TASKS, CONVERSATIONS, EXPERIENCES = "task", "sft", "experience"
RAW_TASK = "raw_task"
_LOG = table(EXPERIENCES, *map(column, ("id", "uid", "buffer", "experience_bytes")))
_BLOB = table("experience_blob", *map(column, ("id", "experience_bytes")))
_MAX_SHOWN = 10

_logger = get_logger("buffer.tables")
T = TypeVar("T")


class SQLTable(ListTable):
    """Rows of a table as it was when opened, in the order of its key.

    Args:
        rows: in that order.
    """

    def __init__(self, rows: Sequence[DataRow | BadRow]) -> None:
        super().__init__(rows)

    def first(self, number: int) -> Self:
        """Return the table's first `number` rows.

        Rows are added at the end, so this is the table as it was when it had `number` rows.
        """
        made = type(self).__new__(type(self))
        made.__dict__ |= self.__dict__ | {"_rows": self._rows[:number]}
        return made


class ExperienceTable(SQLTable):
    """The experiences of one buffer in the store of a run.

    The columns are `id`, `uid` and `size`; `size` is null where the payload is gone.

    Args:
        rows: in the order of the log.
        engine: of the database, for the payloads, which are read one by one.
        payloads: the table that has them.
    """

    def __init__(self, rows: Sequence[DataRow], engine: Engine, payloads: TableClause) -> None:
        super().__init__(rows)
        self._engine = engine
        self._payloads = payloads

    def payload(self, id_: int) -> bytes:
        """Return the payload of the experience with that id.

        Raises:
            DataError: the payload is gone (E5104), or the database cannot be read (E4001).
        """
        statement = select(self._payloads.c.experience_bytes).where(self._payloads.c.id == id_)

        def read() -> Any:
            with self._engine.connect() as connection:
                return connection.scalar(statement)

        payload = _patiently(read, str(self._engine.url), was_there=True)
        if payload is None:
            raise DataError(f"experience {id_} has no payload any more", code="E5104")
        return bytes(payload)


def load_sql_table(url: str | None, *, name: str, schema: str) -> SQLTable:
    """Return the rows of a buffer that is kept in a database.

    Args:
        url: SQLAlchemy URL.
        name: of the buffer. Tasks are the table of that name, else the table `task`; conversations that table, else
            the table `sft`; experiences are the rows of that buffer in the table `experience`, whichever run stored
            them. A column `raw_task` of a table of tasks holds the whole task as a JSON object.
        schema: `task`, `sft` or `experience`.

    Raises:
        DataError: no such database, or one that cannot be read (E4001), no rows (E4002), no such table or buffer
            (E4061), or one of another form (E4062).
        EnvironmentProblem: the driver of the database is not installed (E3301).
    """
    if not url:
        raise DataError("the path of a database is not set; give sqlite:///<file> or postgresql://...", code="E4001")

    def read() -> SQLTable:
        engine = _engine(url)
        inspector, shown = inspect(engine), redact(url)
        if schema == EXPERIENCES:
            return _experiences(engine, inspector, name=name, shown=shown)
        return _rows(engine, inspector, name=name, shown=shown, schema=schema)

    return _patiently(read, url, was_there=False)


def _patiently(read: Callable[[], T], url: str, *, was_there: bool) -> T:
    """Return what `read` returns, repeated if the server is gone."""
    wait = ServerWait(was_there=was_there)
    while True:
        try:
            return read()
        except SQLAlchemyError as error:
            if not wait.lasts_after(error, url, _logger):
                text = f"cannot read {redact(url)}: {getattr(error, 'orig', None) or error}"
                raise DataError(text, code="E4001") from error


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    driver = postgresql_driver(url)
    if driver is None:
        if not Path(parsed.database or "").is_file():  # SQLite would make an empty one
            raise DataError(f"there is no database {parsed.database}", code="E4001")
        return create_engine(parsed)
    try:
        return create_engine(parsed.set(drivername=f"postgresql+{driver}"), pool_pre_ping=True)
    except ImportError as error:
        text = f"{redact(url)} needs the package {driver}, which is not installed; run {install_hint('postgres')}"
        raise EnvironmentProblem(text, code="E3301") from error


def _experiences(engine: Engine, inspector: Inspector, *, name: str, shown: str) -> ExperienceTable:
    if not inspector.has_table(EXPERIENCES):
        hint = _if_conversations(inspector, name)
        text = f"{shown} has no table `{EXPERIENCES}`, which a run with storage_type sql or queue makes; it has"
        raise DataError(f"{text}: {_listed(inspector.get_table_names())}{hint}", code="E4061")
    payloads = _BLOB if inspector.has_table(_BLOB.name) else _LOG  # of older versions
    needed = {each.name for each in (*_LOG.c, *payloads.c)} - ({"experience_bytes"} if payloads is _BLOB else set())
    lacking = needed - {each["name"] for each in inspector.get_columns(EXPERIENCES)}
    if lacking:
        text = f"table `{EXPERIENCES}` of {shown} was not made by this program: it has no column"
        raise DataError(f"{text} {', '.join(sorted(lacking))}", code="E4062")
    size = func.length(payloads.c.experience_bytes).label("size")
    statement = select(_LOG.c.id, _LOG.c.uid, size).where(_LOG.c.buffer == name).order_by(_LOG.c.id)
    if payloads is not _LOG:
        statement = statement.select_from(_LOG.outerjoin(payloads, payloads.c.id == _LOG.c.id))
    with engine.connect() as connection:
        place = f"{shown}, buffer {name}"
        rows = [DataRow(place, int(row.id), dict(row._mapping)) for row in connection.execute(statement)]
        if not rows:
            others = connection.execute(select(_LOG.c.buffer, func.count()).group_by(_LOG.c.buffer)).all()
            known = _listed([f"{other} ({count})" for other, count in others])
            text = f"{shown} has no experiences of a buffer {name!r}; it has those of: {known}"
            hint = "; write the name of that buffer as `name`" if others else ""
            raise DataError(f"{text}{hint}", code="E4061")
    return ExperienceTable(rows, engine, payloads)


def _rows(engine: Engine, inspector: Inspector, *, name: str, shown: str, schema: str) -> SQLTable:
    known = inspector.get_table_names()
    chosen = next((each for each in (name, schema) if each in known), None)
    if chosen is None:
        is_log = EXPERIENCES in known and schema == CONVERSATIONS
        hint = f"; write `schema_type: {EXPERIENCES}` for the experiences of a run" if is_log else ""
        text = f"{shown} has neither a table `{name}` nor a table `{schema}`; it has: {_listed(known)}"
        raise DataError(f"{text}{hint}", code="E4061")
    names = [each["name"] for each in inspector.get_columns(chosen) if not isinstance(each["type"], LargeBinary)]
    key = inspector.get_pk_constraint(chosen)["constrained_columns"]
    if not key and engine.dialect.name != "sqlite":
        text = f"table `{chosen}` of {shown} has no primary key, which would give its rows their order; add one"
        raise DataError(text, code="E4062")
    source = table(chosen)
    # Columns without a type: JSON that the database keeps as text is read as text, and decoded with the row.
    columns: list[Any] = [column(each) for each in names]
    statement = select(*columns).select_from(source).order_by(*map(column, key or ["rowid"]))
    with engine.connect() as connection:
        found = connection.execute(statement).all()
    if not found:
        raise DataError(f"table `{chosen}` of {shown} has no rows", code="E4002")
    place = f"{shown}, table {chosen}"
    rows = [DataRow(place, number, dict(zip(names, row, strict=True))) for number, row in enumerate(found, 1)]
    return SQLTable([_task(row) for row in rows] if schema == TASKS and RAW_TASK in names else rows)


def _task(row: DataRow) -> DataRow | BadRow:
    """Return the row that the column `raw_task` holds."""
    values = as_written(row.values[RAW_TASK])
    if not isinstance(values, dict):
        return BadRow(row.file, row.line, RAW_TASK, "must be a JSON object")
    return DataRow(row.file, row.line, values)


def _if_conversations(inspector: Inspector, name: str) -> str:
    is_there = any(inspector.has_table(each) for each in (name, CONVERSATIONS))
    return f"; write `schema_type: {CONVERSATIONS}` for a table of conversations" if is_there else ""


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return (", ".join(sorted(names)[:_MAX_SHOWN]) or "none") + more
