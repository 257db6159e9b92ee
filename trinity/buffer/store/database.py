"""The open database of a store: engine, transactions and clock.

A server may restart or be replaced by another. Then a transaction waits for it, see `ServerWait`, and a method
that is `reconnecting` does its transaction again. A transaction whose connection was lost during the commit is not done
twice: the server is asked whether it was done.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from trinity.buffer.store import dialect
from trinity.buffer.store.marks import WriteMarks
from trinity.common.errors import EnvironmentProblem, StoreError
from trinity.utils.database_errors import ServerWait, is_lost, said
from trinity.utils.disk import free_mib
from trinity.utils.log import get_logger, redact

SETTING = "buffer.trainer_input.experience_buffer.path"  # as the messages of this package call it

_logger = get_logger("buffer.store")

P = ParamSpec("P")
T = TypeVar("T")


class LostConnectionError(StoreError):
    """The connection was lost, and the transaction has changed nothing."""

    default_code = "E5212"


def reconnecting(method: Callable[P, T]) -> Callable[P, T]:
    """Make a method repeat its transaction after a lost connection.

    The object of the method must have a `_database`. The method has one transaction; or one that changes something, and
    others that are `reconnecting` themselves. It changes nothing else before the transaction is committed, so that it
    can be repeated.
    """

    @functools.wraps(method)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
        database: Database = cast(Any, args[0])._database
        return database.repeat(lambda: method(*args, **kwargs))

    return repeated


class Database:
    """One database behind a store; safe to use from many threads.

    Args:
        url: SQLAlchemy URL.
        busy_timeout_s: how long a transaction waits for another process.
        clock: seconds since 1970; None: the clock of the database.
        setting: the key or option that gave `url`, for messages.
    """

    def __init__(
        self, url: str, *, busy_timeout_s: float, clock: Callable[[], float] | None = None, setting: str = SETTING
    ) -> None:
        self.url = url
        self.setting = setting
        self.busy_timeout_s = busy_timeout_s
        self.clock = clock
        self._engine: Engine | None = None
        self._file: Path | None = None
        self._inode = (0, 0)
        self._write_lock = threading.Lock()
        self._was_there = False
        self._marks = WriteMarks()

    @property
    def is_open(self) -> bool:
        """Whether transactions can begin."""
        return self._engine is not None

    def open(self, create: Callable[[Connection], None]) -> None:
        """Open or create the database.

        Args:
            create: makes the tables that are not there yet, in a transaction.

        Raises:
            StoreError: the URL is not usable (E5201), or the server cannot be reached (E5212).
            EnvironmentProblem: the file cannot be written (E3601) or is on a network file system (E3604).
        """
        try:
            self._open(create)
        except (StoreError, EnvironmentProblem) as error:
            self.close()
            if self.setting == SETTING:
                raise
            text = str(error.args[0]).replace(f"{SETTING} or checkpoint_root_dir", SETTING)
            raise type(error)(text.replace(SETTING, self.setting), code=error.code) from error

    def _open(self, create: Callable[[Connection], None]) -> None:
        engine, self._file = dialect.open_engine(self.url, busy_timeout_s=self.busy_timeout_s)
        self._inode = _inode(self._file)
        self._engine = engine

        def transaction() -> None:  # as often as one likes
            with self._guard() as engine, self._connected(engine) as plain:
                connection = self._for_writing(plain)
                with connection.begin():
                    dialect.begin_writing(connection)
                    create(connection)
                    self._marks.create(connection)

        self.repeat(transaction)

    def repeat(self, transaction: Callable[[], T]) -> T:
        """Return what a transaction returns, repeated if its connection is lost."""
        wait: ServerWait | None = None
        while True:
            try:
                return transaction()
            except LostConnectionError:
                if not self._was_there:  # it was waited for
                    raise
                wait = wait or ServerWait(was_there=True)
                if not self.is_open or not wait.lasts():
                    raise

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Begin a transaction that writes.

        It is committed unless an exception leaves the block.

        Raises:
            StoreError: closed (E5208), removed or replaced (E5209), without space (E5210), or failed, busy for too long
                among others (E5200).
            LostConnectionError: not committed, and the connection is gone.
        """
        with self._write_lock, self._guard() as engine, self._connected(engine) as plain:
            connection = self._for_writing(plain)
            with connection.begin() as transaction:
                dialect.begin_writing(connection)
                is_marked = self._marks.leave(connection)
                yield connection
                try:
                    transaction.commit()
                except SQLAlchemyError as error:
                    if not is_marked or not is_lost(error) or not self._is_committed():
                        raise

    def _for_writing(self, connection: Connection) -> Connection:
        return connection.execution_options(**dialect.write_options(), **dialect.clock_options(self.clock))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Begin a transaction that reads.

        Raises:
            StoreError: see `write`.
        """
        with self._guard() as engine, self._connected(engine) as connection:
            yield connection.execution_options(**dialect.clock_options(self.clock))

    @contextmanager
    def _connected(self, engine: Engine) -> Iterator[Connection]:
        """Connect, and wait for the server; longer if it was there before."""
        wait = ServerWait(was_there=self._was_there)
        while True:
            try:
                connection = engine.connect()
                break
            except SQLAlchemyError as error:
                if not self.is_open or not wait.lasts_after(error, self.url, _logger):
                    raise
        self._was_there = True
        with connection:
            yield connection

    def _is_committed(self) -> bool:
        """Return whether the last write was committed.

        It is asked after the connection was lost during the commit.
        """

        def ask() -> bool:
            with self._guard() as engine, self._connected(engine) as plain:
                connection = self._for_writing(plain)
                with connection.begin():
                    return self._marks.has_last(connection)

        try:
            is_committed = self.repeat(ask)
        except LostConnectionError as error:  # the transaction must not be repeated
            raise StoreError(
                f"{redact(self.url)} was lost in a commit, and whether it was done cannot be asked: {error.args[0]}",
                code="E5200",
            ) from error
        _logger.info("the database was lost in a commit, which is %s", "committed" if is_committed else "aborted")
        return is_committed

    @contextmanager
    def _guard(self) -> Iterator[Engine]:
        engine = self._engine
        if engine is None:
            raise StoreError(f"the experience store {redact(self.url)} is closed", code="E5208")
        if _inode(self._file) != self._inode:
            raise StoreError(f"the experience store {self._file} was removed or replaced while in use", code="E5209")
        try:
            yield engine
        except SQLAlchemyError as error:
            raise self._explained(error) from error

    def _explained(self, error: SQLAlchemyError) -> StoreError:
        cause = getattr(error, "orig", None) or error
        if dialect.is_full(cause):
            place = "" if self._file is None else f" ({free_mib(self._file.parent):.1f} MiB are free)"
            return StoreError(
                f"no space left for the experience store {redact(self.url)}{place}: {cause}; what it had acknowledged "
                "is whole; free some space and run the same command again to continue",
                code="E5210",
            )
        if is_lost(error):
            return LostConnectionError(
                f"{redact(self.url)} cannot be reached: {said(error)}; start the server, or look at host, port, "
                f"user and password in {self.setting}; then run the same command again to continue"
            )
        waited = f" (waited up to {self.busy_timeout_s:g} s for other processes)" if dialect.is_busy(cause) else ""
        return StoreError(f"the experience store {redact(self.url)} failed: {cause}{waited}", code="E5200")


def _inode(file: Path | None) -> tuple[int, int]:
    if file is None:
        return 0, 0
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return -1, -1
    return status.st_dev, status.st_ino
