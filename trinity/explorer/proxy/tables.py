"""The table of the record of mode serve."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Float, Index, Integer, LargeBinary, MetaData, String, Table, inspect

from trinity.common.errors import StoreError

_METADATA = MetaData()

CALLS = Table(
    "proxy_history",
    _METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run", String(256), nullable=False),
    Column("producer", String(128), nullable=False),
    Column("message_id", String(128), nullable=False),
    Column("choice", Integer, nullable=False),  # of an answer with several
    Column("task", String(64)),  # as the caller named it; NULL: a task of its own
    Column("run_id", Integer, nullable=False),
    Column("reward", Float),
    Column("step", Integer),  # explore step that it is committed in, or about to be
    Column("experience_bytes", LargeBinary),  # NULL: committed
    Index("ix_proxy_history_message", "run", "producer", "message_id"),
    Index("ix_proxy_history_task", "run", "producer", "task", "run_id"),
    Index("ix_proxy_history_step", "run", "producer", "step", "reward"),
    sqlite_autoincrement=True,
)
"""One answered choice a row.

    step NULL                    recorded; with a reward: ready to be committed
    step N, experience_bytes     about to be appended as explore step N
    step N, no experience_bytes  committed
"""


def create_tables(connection: Connection) -> None:
    """Create the table unless it is there.

    Raises:
        StoreError: a table of this name has other columns (E5220).
    """
    if CALLS.name in inspect(connection).get_table_names():
        there = {column["name"] for column in inspect(connection).get_columns(CALLS.name)}
        missing = sorted({column.name for column in CALLS.columns} - there)
        if missing:
            raise StoreError(
                f"the database of explorer.db_url has a table {CALLS.name} that this program did not make: it lacks "
                f"{', '.join(missing)}; choose another explorer.db_url",
                code="E5220",
            )
        return
    _METADATA.create_all(connection)
