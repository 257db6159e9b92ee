"""The tables of the log: made, verified, and brought up to date.

Each function runs inside a transaction that the store has begun.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import Connection, and_, func, insert, inspect, select, text, update
from sqlalchemy.schema import CreateIndex

from trinity.buffer.store import fates
from trinity.buffer.store.dialect import lock_schema
from trinity.buffer.store.fates import STORE, Owner
from trinity.buffer.store.scope import Scope
from trinity.buffer.store.tables import BLOB, EXPERIENCE, FATE, PRODUCER, SCHEMA, SCHEMA_VERSION, STEP_EXP, TABLES
from trinity.buffer.store.types import NO_TASK
from trinity.common.errors import StoreError
from trinity.common.schema.sql_schema import DROPPED
from trinity.utils.log import get_logger

_SCHEMA_NAME = "experience_store"
_WITHOUT_FATES, _WITHOUT_BLOBS, _ANY_JSON = 2, 3, 4  # older versions, by what sets them apart

_logger = get_logger("buffer.store")


def create_schema(connection: Connection) -> None:
    """Create the tables, or verify that they are of this version.

    Raises:
        StoreError: the database was made by another version or another program (E5202).
    """
    lock_schema(connection)
    names = set(inspect(connection).get_table_names())
    if SCHEMA.name not in names and EXPERIENCE.name in names:
        raise StoreError(
            "the database has a table `experience` that this program did not make; choose another "
            "buffer.trainer_input.experience_buffer.path",
            code="E5202",
        )
    if SCHEMA.name not in names:
        EXPERIENCE.metadata.create_all(connection, tables=TABLES)
        connection.execute(insert(SCHEMA).values(name=_SCHEMA_NAME, version=SCHEMA_VERSION))
        return
    version = connection.scalar(select(SCHEMA.c.version).where(SCHEMA.c.name == _SCHEMA_NAME))
    if version == _WITHOUT_FATES:
        _add_fates(connection)
        version = _WITHOUT_BLOBS
    if version == _WITHOUT_BLOBS:
        _move_payloads(connection)
        version = _ANY_JSON
    if version == _ANY_JSON:  # older programs would drop a payload in strict JSON as damaged
        connection.execute(update(SCHEMA).where(SCHEMA.c.name == _SCHEMA_NAME).values(version=SCHEMA_VERSION))
        version = SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the database has schema version {version}, this program reads version {SCHEMA_VERSION}; use the version "
            "of trinity that made it, or choose another buffer.trainer_input.experience_buffer.path",
            code="E5202",
        )
    _add_indexes(connection)


def _add_indexes(connection: Connection) -> None:
    """Make the indexes that an older program did not make."""
    inspector = inspect(connection)
    for table in TABLES:
        known = {index["name"] for index in inspector.get_indexes(table.name)}
        for index in sorted(
            (each for each in table.indexes if each.name not in known), key=lambda each: str(each.name)
        ):
            _logger.info("adding index %s to the experience store; a long history takes minutes, once", index.name)
            connection.execute(CreateIndex(index, if_not_exists=True))


def _add_fates(connection: Connection) -> None:
    """Add the column `is_first` and the table `fate`, which older logs lack.

    How many rollouts operators filtered and how many failed before is not known: the counts begin with the rollouts
    that are in the log.
    """
    _logger.info("the experience store gets the table `fate`; a long history takes minutes, once")
    EXPERIENCE.metadata.create_all(connection, tables=[FATE])
    connection.execute(text("ALTER TABLE experience ADD COLUMN is_first INTEGER NOT NULL DEFAULT 1"))
    columns = EXPERIENCE.c
    rollout = (columns.run, columns.stage, columns.buffer, columns.task_id, columns.run_id)
    first = select(func.min(columns.id)).where(columns.task_id != NO_TASK).group_by(*rollout)
    later = and_(columns.task_id != NO_TASK, columns.id.not_in(first))
    connection.execute(update(EXPERIENCE).where(later).values(is_first=0))
    for run, stage, buffer in connection.execute(
        select(PRODUCER.c.run, PRODUCER.c.stage, PRODUCER.c.buffer).distinct()
    ):
        _count_fates(connection, Scope(run, stage, buffer))


def _move_payloads(connection: Connection) -> None:
    """Move the payloads of an older program to their own table.

    Older logs have them in the rows of `experience`. The column there stays, empty: databases take long to remove one,
    or cannot.
    """
    _logger.info("the payloads of the experience store get a table of their own; many of them take minutes, once")
    EXPERIENCE.metadata.create_all(connection, tables=[BLOB])
    for statement in (
        "DROP INDEX IF EXISTS ix_experience_held",
        "ALTER TABLE experience ADD COLUMN payload_bytes INTEGER",
        "INSERT INTO experience_blob (id, experience_bytes) SELECT id, experience_bytes FROM experience "
        "WHERE experience_bytes IS NOT NULL",
        "UPDATE experience SET payload_bytes = length(experience_bytes), experience_bytes = NULL "
        "WHERE experience_bytes IS NOT NULL",
    ):
        connection.execute(text(statement))


def _count_fates(connection: Connection, scope: Scope) -> None:
    columns, of_scope = EXPERIENCE.c, and_(scope.where(EXPERIENCE), EXPERIENCE.c.is_first == 1)
    counted: dict[tuple[Owner, int], Counter[str]] = {}

    def count(owner: Owner, step: int, fate: str, number: int) -> None:
        counted.setdefault((owner, step), Counter())[fate] += number

    issued = select(columns.producer, func.max(columns.explore_step), func.count()).where(of_scope)
    for producer, step, number in connection.execute(issued.group_by(columns.producer)):
        count(Owner.producer(producer), step, fates.ISSUED, number)
    uses = select(STEP_EXP.c.consumer, STEP_EXP.c.uid, func.min(STEP_EXP.c.step).label("step"))
    first_use = uses.where(scope.where(STEP_EXP)).group_by(STEP_EXP.c.consumer, STEP_EXP.c.uid).subquery()
    trained: Any = select(first_use.c.consumer, first_use.c.step, func.count())
    trained = trained.join(EXPERIENCE, and_(of_scope, columns.uid == first_use.c.uid))
    for consumer, step, number in connection.execute(trained.group_by(first_use.c.consumer, first_use.c.step)):
        count(Owner.consumer(consumer), step, fates.ENDED_TRAINED, number)
    owner = (columns.producer, columns.explore_step, columns.claimed_by, columns.trained_step, columns.drop_reason)
    dropped = select(*owner, func.count()).where(of_scope, columns.state == DROPPED, columns.use_count == 0)
    for producer, explored, consumer, step, reason, number in connection.execute(dropped.group_by(*owner)):
        if step is not None:
            count(Owner.consumer(consumer), step, fates.of_drop(reason), number)
        elif consumer is None:
            count(Owner.producer(producer), explored, fates.failed(reason), number)
        else:
            count(STORE, 0, fates.failed(reason), number)
    for (each, step), numbers in sorted(counted.items(), key=lambda item: item[0][1]):
        fates.add(connection, scope, each, step=step, counts=numbers)
