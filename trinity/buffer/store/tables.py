"""Tables of the log for producers, consumers and training steps."""

from __future__ import annotations

from sqlalchemy import Float, Index, Integer, String, Table, Text
from sqlalchemy.orm import Mapped, mapped_column

from trinity.common.schema.sql_schema import Base, ExperienceBlobModel, ExperienceModel

SCHEMA_VERSION = 5
NO_ROOM = 2**31 - 1
ABSENT = NO_ROOM - 1
AT_ANY_TIME = -1


def stored_wait(wait: int | None, *, is_scheduled: bool) -> int | None:
    """Return the `wait_version` of a producer; None waits for nothing."""
    if is_scheduled:
        return wait
    return AT_ANY_TIME if wait is None else -wait


def read_wait(stored: int | None) -> tuple[int | None, bool]:
    """Return what a producer waits for, and whether it follows a schedule."""
    if stored is None or stored >= 0:
        return stored, True
    return None if stored == AT_ANY_TIME else -stored, False


class SchemaModel(Base):
    """Version of the schema of this database (one row).

    Attributes:
        name: always `experience_store`.
        version: `SCHEMA_VERSION` of the program that made it.
    """

    __tablename__ = "trinity_schema"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    version: Mapped[int] = mapped_column(Integer)


class ProducerModel(Base):
    """A producer of a buffer.

    Attributes:
        is_open: 1 until the producer says that it is finished.
        wait_version: nothing is appended before this model version is published; `NO_ROOM`: before the trainer has
            taken something from a full queue; `ABSENT`: before the producer, which has died, is started again. Below
            0: it follows no schedule and never waits for a version; it waits for nothing (`AT_ANY_TIME`), or for the
            opposite number. See `read_wait`.
        finished_step: last explore step that is complete in the log.
    """

    __tablename__ = "producer"

    run: Mapped[str] = mapped_column(String(256), primary_key=True)
    stage: Mapped[str] = mapped_column(String(128), primary_key=True)
    buffer: Mapped[str] = mapped_column(String(128), primary_key=True)
    producer: Mapped[str] = mapped_column(String(128), primary_key=True)
    is_open: Mapped[int] = mapped_column(Integer, default=1)
    wait_version: Mapped[int | None] = mapped_column(Integer)
    finished_step: Mapped[int] = mapped_column(Integer, default=0)


class SnapshotModel(Base):
    """Resume state of a producer after its last finished step.

    It is written with that step's experiences.

    Attributes:
        state: what the producer wants to continue from, as text; NULL where its state is kept elsewhere.
        num_rollouts: rollouts that it has appended.
    """

    __tablename__ = "producer_snapshot"

    run: Mapped[str] = mapped_column(String(256), primary_key=True)
    stage: Mapped[str] = mapped_column(String(128), primary_key=True)
    buffer: Mapped[str] = mapped_column(String(128), primary_key=True)
    producer: Mapped[str] = mapped_column(String(128), primary_key=True)
    state: Mapped[str | None] = mapped_column(Text)
    num_rollouts: Mapped[int] = mapped_column(Integer, default=0)


class ConsumerModel(Base):
    """A consumer of a buffer.

    Attributes:
        epoch: of its newest token; older tokens are fenced.
        opened_at: seconds since 1970 by the clock of the database.
    """

    __tablename__ = "consumer"

    run: Mapped[str] = mapped_column(String(256), primary_key=True)
    stage: Mapped[str] = mapped_column(String(128), primary_key=True)
    buffer: Mapped[str] = mapped_column(String(128), primary_key=True)
    consumer: Mapped[str] = mapped_column(String(128), primary_key=True)
    epoch: Mapped[int] = mapped_column(Integer, default=0)
    opened_at: Mapped[float | None] = mapped_column(Float)


class TrainStepModel(Base):
    """A committed training step.

    Attributes:
        step: 1-based number of the step.
        epoch: of the token that committed it.
        num_experiences: rows that it trained.
        committed_at: seconds since 1970 by the clock of the database.
    """

    __tablename__ = "train_step"

    run: Mapped[str] = mapped_column(String(256), primary_key=True)
    stage: Mapped[str] = mapped_column(String(128), primary_key=True)
    buffer: Mapped[str] = mapped_column(String(128), primary_key=True)
    consumer: Mapped[str] = mapped_column(String(128), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    epoch: Mapped[int] = mapped_column(Integer)
    num_experiences: Mapped[int] = mapped_column(Integer)
    committed_at: Mapped[float] = mapped_column(Float)


class StepExperienceModel(Base):
    """An experience that a training step used.

    Attributes:
        pos: position in the batch, 0-based.
        uid: identity of the experience.
    """

    __tablename__ = "step_exp"

    run: Mapped[str] = mapped_column(String(256), primary_key=True)
    stage: Mapped[str] = mapped_column(String(128), primary_key=True)
    buffer: Mapped[str] = mapped_column(String(128), primary_key=True)
    consumer: Mapped[str] = mapped_column(String(128), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    pos: Mapped[int] = mapped_column(Integer, primary_key=True)
    uid: Mapped[str] = mapped_column(String(256))

    __table_args__ = (
        Index("ix_step_exp_uid", "run", "stage", "buffer", "consumer", "uid"),
        {"sqlite_with_rowid": False},  # the table is its primary key: each row is written into two trees, not three
    )


class FateModel(Base):
    """What happened to rollouts, counted by those who know it (see `fates`).

    Attributes:
        side: `producer`, `consumer` or `store`.
        owner: name of the producer or consumer; empty for the store.
        step: explore step of a producer, training step of a consumer, 0 for the store.
        fate: `issued`, `trained`, `stale`, `filtered/<operator>` or `failed/<kind>`.
        rollouts: of this fate in all steps of the owner until this one.
    """

    __tablename__ = "fate"

    run: Mapped[str] = mapped_column(String(256), primary_key=True)
    stage: Mapped[str] = mapped_column(String(128), primary_key=True)
    buffer: Mapped[str] = mapped_column(String(128), primary_key=True)
    side: Mapped[str] = mapped_column(String(16), primary_key=True)
    owner: Mapped[str] = mapped_column(String(128), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    fate: Mapped[str] = mapped_column(String(256), primary_key=True)
    rollouts: Mapped[int] = mapped_column(Integer)


def _table(model: type[Base]) -> Table:
    table = model.__table__
    assert isinstance(table, Table), f"{model.__name__} is not mapped to a table"
    return table


EXPERIENCE = _table(ExperienceModel)
BLOB = _table(ExperienceBlobModel)
SCHEMA = _table(SchemaModel)
PRODUCER = _table(ProducerModel)
SNAPSHOT = _table(SnapshotModel)
CONSUMER = _table(ConsumerModel)
TRAIN_STEP = _table(TrainStepModel)
STEP_EXP = _table(StepExperienceModel)
FATE = _table(FateModel)
TABLES = (EXPERIENCE, BLOB, SCHEMA, PRODUCER, SNAPSHOT, CONSUMER, TRAIN_STEP, STEP_EXP, FATE)
