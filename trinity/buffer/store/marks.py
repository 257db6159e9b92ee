"""Marks of writes, so that one can ask whether a commit was done.

The question arises where the connection is lost before the answer to a commit has come. The id of the transaction would
not do: a server that has crashed gives the ids of uncommitted transactions to others. SQLite commits in this process,
which knows how that ended: there are no marks.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from sqlalchemy import BigInteger, Column, Connection, DateTime, MetaData, String, Table, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.schema import CreateTable

from trinity.buffer.store.dialect import begin_writing, has_row_locks, lock_schema

LAST_WRITE = Table(
    "last_write",
    MetaData(),
    Column("writer", String(32), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
)
KEPT = timedelta(days=30)


class WriteMarks:
    """The marks of one object that writes, one transaction at a time."""

    def __init__(self) -> None:
        self._writer = uuid4().hex
        self._number = 0

    def create(self, connection: Connection) -> None:
        """Create the table; remove the marks of writers that are long gone."""
        if has_row_locks(connection):
            lock_schema(connection)
            connection.execute(CreateTable(LAST_WRITE, if_not_exists=True))
            connection.execute(delete(LAST_WRITE).where(LAST_WRITE.c.at < func.now() - KEPT))

    def leave(self, connection: Connection) -> bool:
        """Mark a transaction as the last one; return whether one can ask for it."""
        self._number += 1
        if not has_row_locks(connection):
            return False
        values = {"number": self._number, "at": func.now()}
        new = insert(LAST_WRITE).values(writer=self._writer, **values)
        connection.execute(new.on_conflict_do_update(index_elements=[LAST_WRITE.c.writer], set_=values))
        return True

    def has_last(self, connection: Connection) -> bool:
        """Return whether the last transaction that left a mark was committed.

        Wait until it has ended: the server may not have noticed yet that its connection is gone.
        """
        begin_writing(connection)
        number = connection.scalar(select(LAST_WRITE.c.number).where(LAST_WRITE.c.writer == self._writer))
        return bool(number == self._number)
