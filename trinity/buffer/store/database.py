"""The open database of a store: engine, transactions and clock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from trinity.buffer.store import dialect
from trinity.common.errors import StoreError
from trinity.utils.disk import free_mib
from trinity.utils.log import redact


class Database:
    """One database behind a store; safe to use from many threads.

    Args:
        url: SQLAlchemy URL.
        busy_timeout_s: how long a transaction waits for another process.
        clock: seconds since 1970; None: the clock of the database.
    """

    def __init__(self, url: str, *, busy_timeout_s: float, clock: Callable[[], float] | None = None) -> None:
        self.url = url
        self.busy_timeout_s = busy_timeout_s
        self.clock = clock
        self._engine: Engine | None = None
        self._file: Path | None = None
        self._inode = (0, 0)
        self._write_lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether transactions can begin."""
        return self._engine is not None

    def open(self) -> None:
        """Open or create the database.

        Raises:
            StoreError: the URL is not usable (E5201).
            EnvironmentProblem: the file cannot be written (E3601) or is on a network file system (E3604).
        """
        engine, self._file = dialect.open_engine(self.url, busy_timeout_s=self.busy_timeout_s)
        self._inode = _inode(self._file)
        self._engine = engine

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
        """
        with self._write_lock, self._guard() as engine, engine.connect() as plain:
            connection = plain.execution_options(**dialect.write_options(), **dialect.clock_options(self.clock))
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Begin a transaction that reads.

        Raises:
            StoreError: as of `write`.
        """
        with self._guard() as engine, engine.connect() as connection:
            yield connection.execution_options(**dialect.clock_options(self.clock))

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
