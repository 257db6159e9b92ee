"""Tasks kept in the table `task` of a database."""

from __future__ import annotations

from sqlalchemy import create_engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from trinity.buffer.dataset import ListTable
from trinity.buffer.rows import BadRow, DataRow
from trinity.common.errors import DataError
from trinity.common.schema.sql_schema import TaskModel
from trinity.utils.log import redact


def load_sql_tasks(url: str) -> ListTable:
    """Return the rows of table `task` in the order of their ids.

    The column `raw_task` holds a JSON object per row.

    Raises:
        DataError: the database cannot be read (E4001), or has no task (E4002).
    """
    name = redact(url)
    try:
        with Session(create_engine(url, poolclass=NullPool)) as session:
            models = session.scalars(select(TaskModel).order_by(TaskModel.id)).all()
    except SQLAlchemyError as error:
        raise DataError(f"cannot read table `task` of {name}: {error}", code="E4001") from error
    rows: list[DataRow | BadRow] = []
    for model in models:
        if isinstance(model.raw_task, dict):
            rows.append(DataRow(name, model.id, model.raw_task))
        else:
            rows.append(BadRow(name, model.id, "raw_task", "must be a JSON object"))
    if not rows:
        raise DataError(f"table `task` of {name} has no rows", code="E4002")
    return ListTable(rows)
