"""Database-specific code: engine, transactions, clock, file system.

No other module of the log knows which database is used.
"""

from __future__ import annotations

import functools
import operator
import os
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Float,
    Table,
    create_engine,
    event,
    func,
    insert,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.sql.elements import ColumnElement

from trinity.common.errors import EnvironmentProblem, StoreError
from trinity.utils.packages import install_hint, postgresql_driver

WRITE = "trinity_write"
CLOCK = "trinity_clock"
SCHEMA_LOCK = 0x7472696E
WRITE_LOCK = 0x7472696F
PAGE_BYTES = 8192  # of SQLite: most payloads need one page beyond that of their row
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02  # while another process writes to SQLite
CONNECT_S = 10  # for one attempt to connect to a server
# Of libpq: a server that disappears without closing its connections is noticed within a minute.
KEEPALIVE = {"keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3}
if hasattr(socket, "TCP_USER_TIMEOUT"):  # elsewhere libpq refuses it
    KEEPALIVE["tcp_user_timeout"] = 60_000
NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "smb3"}
    | {"smbfs"}
)
MOUNTS = Path("/proc/mounts")
_PRIMARY = 0xFF  # of SQLite's error codes: the other bits give details
_POSTGRESQL_DISK_FULL = "53100"
_POSTGRESQL_BUSY = ("55P03", "40P01")  # a lock was not available in time; a deadlock


def open_engine(url: str, *, busy_timeout_s: float) -> tuple[Engine, Path | None]:
    """Return an engine for `url`, and the file that holds an SQLite database.

    Raises:
        StoreError: the URL is not one of SQLite (a file) or PostgreSQL (E5201).
        EnvironmentProblem: SQLite on a network file system (E3604), a folder that cannot be written (E3601), or a
            driver that is not installed (E3301).
    """
    parsed = _parse(url)
    driver = postgresql_driver(parsed.drivername + "://")
    if driver is not None:
        return _postgresql_engine(parsed, driver, busy_timeout_s), None
    path = Path(parsed.database or "").absolute()
    refuse_network_file_system(path)
    _create_private(path)
    engine = create_engine(parsed, connect_args={"timeout": busy_timeout_s, "check_same_thread": False})
    event.listen(engine, "connect", lambda connection, _: _set_up_sqlite(connection, busy_timeout_s))
    event.listen(engine, "begin", lambda connection: _begin_sqlite(connection, busy_timeout_s))
    return engine, path


def _postgresql_engine(url: URL, driver: str, busy_timeout_s: float) -> Engine:
    own = {"connect_timeout": CONNECT_S, "options": f"-c lock_timeout={round(busy_timeout_s * 1000)}"} | KEEPALIVE
    settings = {name: value for name, value in own.items() if name not in url.query}
    try:
        return create_engine(url.set(drivername=f"postgresql+{driver}"), pool_pre_ping=True, connect_args=settings)
    except ImportError as error:
        raise EnvironmentProblem(
            f"{url.render_as_string(hide_password=True)} needs the package {driver}, which is not installed; run "
            f"{install_hint('postgres')}",
            code="E3301",
        ) from error


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"the experience store needs an SQLAlchemy URL, got {url!r}", code="E5201") from error
    backend = parsed.get_backend_name()
    has_file = parsed.database not in (None, "", ":memory:") and not str(parsed.database).startswith("file:")
    if backend == "postgresql" or (backend == "sqlite" and has_file):
        return parsed
    raise StoreError(
        "the experience store needs sqlite:///<file> or postgresql://..., got "
        f"{parsed.render_as_string(hide_password=True)!r}",
        code="E5201",
    )


def clock(connection: Connection) -> ColumnElement[float]:
    """Return the SQL expression for the time in seconds since 1970.

    The clock is that of the database, or the one passed to `clock_options`.
    """
    given: Callable[[], float] | None = connection.get_execution_options().get(CLOCK)
    if given is not None:
        return literal(given(), Float)
    if connection.dialect.name == "sqlite":
        return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float)
    return literal_column("extract(epoch from clock_timestamp())", Float)


def lock_schema(connection: Connection) -> None:
    """Lock the schema until the transaction ends.

    Waits until no other process makes tables or indexes.
    """
    if connection.dialect.name == "postgresql":  # in SQLite a transaction that writes is alone
        connection.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK)))


def has_row_locks(connection: Connection) -> bool:
    """Return whether transactions lock rows, and not the whole database."""
    return connection.dialect.name == "postgresql"


def new_ids(connection: Connection, table: Table, number: int) -> list[int]:
    """Return ids of `number` new rows, ascending.

    The transaction must be one that writes.
    """
    if connection.dialect.name == "postgresql":
        drawn = text("SELECT nextval(pg_get_serial_sequence(:name, 'id')) FROM generate_series(1, :number)")
        return sorted(connection.scalars(drawn, {"name": table.name, "number": number}))
    last = connection.scalar(select(func.max(table.c.id))) or 0
    return list(range(last + 1, last + 1 + number))


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, which all name the same columns.

    For SQLite the driver executes the statement: SQLAlchemy's processing of the values takes longer than the write.
    """
    if not rows:
        return
    if connection.dialect.name == "postgresql":  # which is told the type of each value
        connection.execute(insert(table), rows)
        return
    text, order, defaults = _sqlite_insert(table, tuple(rows[0]))
    connection.exec_driver_sql(text, [order({**defaults, **row}) for row in rows])


@functools.lru_cache(maxsize=32)
def _sqlite_insert(table: Table, names: tuple[str, ...]) -> tuple[str, Callable[[Any], Any], dict[str, Any]]:
    """Return the statement that inserts rows with the columns `names`.

    Also return a function that puts the values of a row in the statement's order, and the defaults of other columns.
    """
    compiled = insert(table).compile(dialect=sqlite.dialect(paramstyle="qmark"), column_keys=list(names))
    defaults: Any = {column.key: column.default for column in compiled.insert_prefetch}
    values = {name: default.arg for name, default in defaults.items()}
    return str(compiled), operator.itemgetter(*compiled.positiontup or ()), values


def begin_writing(connection: Connection) -> None:
    """Wait until no other process writes.

    Since each writing transaction waits, the order of the log is that of the commits. In SQLite only one transaction
    can write at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(WRITE_LOCK)))


def write_options() -> dict[str, Any]:
    """Return the execution options of a transaction that will write."""
    return {WRITE: True}


def clock_options(given: Callable[[], float] | None) -> dict[str, Any]:
    """Return execution options that make a transaction use clock `given`.

    They are empty if `given` is None.
    """
    return {} if given is None else {CLOCK: given}


def at_one_time(connection: Connection) -> Connection:
    """Let all statements of a connection see one state of the database.

    In PostgreSQL the connection must have no transaction yet; by default each statement would see what others have
    committed before it.
    """
    if connection.dialect.name == "postgresql":
        return connection.execution_options(isolation_level="REPEATABLE READ")
    if connection.dialect.driver == "pysqlite" and not connection.in_transaction():
        # The driver begins no transaction for statements that read. If the store's listener has begun one, it is
        # used.
        connection.begin()
        if not _has_begun(connection):
            connection.exec_driver_sql("BEGIN")
    return connection


def _has_begun(connection: Connection) -> bool:
    driver = connection.connection.driver_connection
    return driver is not None and bool(driver.in_transaction)


def is_full(error: BaseException) -> bool:
    """Return whether a driver's error means that the disk is full."""
    code = getattr(error, "sqlite_errorcode", 0)
    # SQLite gives the second code if the file for its shared memory cannot grow.
    is_sqlite = code & _PRIMARY == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE
    return is_sqlite or getattr(error, "sqlstate", None) == _POSTGRESQL_DISK_FULL


def is_busy(error: BaseException) -> bool:
    """Return whether a driver's error means that the database was busy.

    That is, another process held it for too long.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    is_sqlite = code & _PRIMARY in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return is_sqlite or getattr(error, "sqlstate", None) in _POSTGRESQL_BUSY


def refuse_network_file_system(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Refuse a file whose file system does not keep SQLite's locks.

    Raises:
        EnvironmentProblem: the file lies on NFS, Lustre, FUSE or the like (E3604).
    """
    kind = file_system_type(path, mounts=mounts)
    if kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse") and kind != "fuseblk"):
        raise EnvironmentProblem(
            f"the experience store {path} lies on a network file system ({kind}), where SQLite loses data; "
            "set buffer.trainer_input.experience_buffer.path to sqlite:///<file on a local disk> or to "
            "postgresql://user@host/database",
            code="E3604",
        )


def file_system_type(path: Path, *, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system of `path`.

    The type is empty where the system does not report it.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in lines:
        parts = line.split()
        if len(parts) < 3:
            continue
        mount = Path(parts[1].encode().decode("unicode_escape"))
        if real.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), parts[2]
    return kind


def _create_private(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR))
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the experience store {path}: {error.strerror}; choose another "
            "buffer.trainer_input.experience_buffer.path or checkpoint_root_dir",
            code="E3601",
        ) from error


def _set_up_sqlite(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    # The driver must not begin transactions by itself: it would begin them deferred, and two deferred
    # writers that have read fail with "database is locked" without waiting.
    connection.isolation_level = None
    connection.execute(f"PRAGMA page_size={PAGE_BYTES}")  # of a database that is made now
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            # The switch to WAL does not wait for other connections by itself.
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.02)
    connection.execute("PRAGMA synchronous=FULL")


def _begin_sqlite(connection: Connection, busy_timeout_s: float) -> None:
    """Begin a transaction; one that writes waits until no other does.

    It polls more often than SQLite itself, whose pauses are as long as the transactions that it waits for.
    """
    if not connection.get_execution_options().get(WRITE, False):
        connection.exec_driver_sql("BEGIN")
        return
    driver: Any = connection.connection.driver_connection
    begun = time.monotonic()
    driver.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - begun
                if not is_busy(error) or waited_s >= busy_timeout_s:
                    break
            time.sleep(min(max(waited_s / 50, FIRST_PAUSE_S), LONGEST_PAUSE_S))
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # once more, for SQLAlchemy's error
    finally:
        driver.execute(f"PRAGMA busy_timeout={round(busy_timeout_s * 1000)}")
