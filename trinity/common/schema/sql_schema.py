"""Tables that users query: experiences, and datasets kept in SQL.

`session.query(ExperienceModel).limit(4)` gives rows whose `to_experience()` is the whole experience, while its
payload is there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    DateTime,
    Float,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    func,
    select,
    text,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from trinity.common.experience import Experience
from trinity.common.payload import MAX_EXPERIENCE_BYTES
from trinity.common.schema.pruned import PrunedExperience

READY, CLAIMED, TRAINED, DROPPED = "ready", "claimed", "trained", "dropped"
_SCOPE = ("run", "stage", "buffer")
_OWNER = (*_SCOPE, "claimed_by")


class Base(DeclarativeBase):
    """Declarative base of all tables of the framework."""


def _part(name: str, *columns: str, where: str) -> Index:
    """Return an index of only the rows that meet `where`.

    Waiting or finished rows that do not meet it cost nothing in it.
    """
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


class ExperienceBlobModel(Base):
    """The payload of an experience, apart from what changes later.

    A database writes a changed row again, with all of its bytes.

    Attributes:
        id: of the experience.
        experience_bytes: the payload; there is no row once it was pruned.
    """

    __tablename__ = "experience_blob"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    experience_bytes: Mapped[bytes] = mapped_column(LargeBinary)


class ExperienceModel(Base):
    """One experience, its text, its payload and its state.

    Attributes:
        id: sequence number in the order of arrival; claims follow it.
        uid: identity of the experience, unique in (run, stage, buffer).
        run: name of the run that owns the row.
        stage: stage of that run, empty without stages.
        buffer: name of the experience buffer.
        producer: who appended it.
        explore_step: step of the producer that made it.
        task_id: `batch/task`, the group.
        run_id: number of the rollout in its group.
        msg_id: turn within the rollout.
        is_first: 1 for one row of each rollout, whose state says what happened to the rollout.
        model_version: version of the weights that sampled it.
        reward: scalar reward, NULL where there is none.
        consumed: 1 once trained.
        state: `ready`, `claimed`, `trained` or `dropped`.
        claimed_by: consumer that claimed, trained or dropped it.
        lease_until: end of the claim, seconds since 1970 by the clock of the database.
        trained_step: last training step that used (or dropped) it.
        retired_step: training step before which a replay buffer let go of it; NULL: it may be used again.
        drop_reason: why it was dropped.
        use_count: how often it was trained.
        prompt_text: the prompt as text.
        response_text: the response as text.
        payload_bytes: size of the payload; NULL once pruned.
        timestamp: time of arrival, UTC.
        blob: the row of the payload; None once pruned.
    """

    __tablename__ = "experience"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    uid: Mapped[str] = mapped_column(String(256))
    run: Mapped[str] = mapped_column(String(256))
    stage: Mapped[str] = mapped_column(String(128), default="")
    buffer: Mapped[str] = mapped_column(String(128))
    producer: Mapped[str] = mapped_column(String(128), default="")
    explore_step: Mapped[int] = mapped_column(Integer, default=0)
    task_id: Mapped[str] = mapped_column(String(256), index=True)
    run_id: Mapped[int] = mapped_column(Integer, default=0)
    msg_id: Mapped[str] = mapped_column(String(128), default="")
    is_first: Mapped[int] = mapped_column(Integer, default=1, server_default=text("1"))
    model_version: Mapped[int | None] = mapped_column(Integer)
    reward: Mapped[float | None] = mapped_column(Float)
    consumed: Mapped[int] = mapped_column(Integer, default=0)
    state: Mapped[str] = mapped_column(String(16), default=READY)
    claimed_by: Mapped[str | None] = mapped_column(String(128))
    lease_until: Mapped[float | None] = mapped_column(Float)
    trained_step: Mapped[int | None] = mapped_column(Integer)
    retired_step: Mapped[int | None] = mapped_column(Integer)
    drop_reason: Mapped[str | None] = mapped_column(String(128))
    use_count: Mapped[int] = mapped_column(Integer, default=0)
    prompt_text: Mapped[str | None] = mapped_column(Text)
    response_text: Mapped[str | None] = mapped_column(Text)
    payload_bytes: Mapped[int | None] = mapped_column(Integer)
    timestamp: Mapped[datetime] = mapped_column(DateTime, server_default=func.current_timestamp())

    blob: Mapped[ExperienceBlobModel | None] = relationship(
        primaryjoin="ExperienceModel.id == foreign(ExperienceBlobModel.id)",
        lazy="joined",
        cascade="all, delete-orphan",
        single_parent=True,
    )

    __table_args__ = (
        UniqueConstraint("run", "stage", "buffer", "uid", name="uq_experience_uid"),
        Index("ix_experience_queue", *_SCOPE, "state", "id"),
        _part("ix_experience_trained", *_OWNER, "trained_step", where="trained_step IS NOT NULL"),
        _part("ix_experience_retired", *_OWNER, "retired_step", where="retired_step IS NOT NULL"),
        _part(
            "ix_experience_held",
            *_OWNER,
            *("state", "retired_step", "trained_step"),
            where="payload_bytes IS NOT NULL AND trained_step IS NOT NULL",
        ),
    )

    @hybrid_property
    def experience_bytes(self) -> bytes | None:
        """The payload; None once pruned."""
        return None if self.blob is None else self.blob.experience_bytes

    @experience_bytes.inplace.setter
    def _set_experience_bytes(self, payload: bytes | None) -> None:
        self.blob = None if payload is None else ExperienceBlobModel(experience_bytes=payload)
        self.payload_bytes = None if payload is None else len(payload)

    @experience_bytes.inplace.expression
    @classmethod
    def _experience_bytes_expression(cls) -> ColumnElement[bytes]:
        payload = select(ExperienceBlobModel.experience_bytes).where(ExperienceBlobModel.id == cls.id)
        return payload.scalar_subquery()

    def to_experience(self) -> Experience:
        """Return the experience of this row.

        Without a payload it is a `PrunedExperience`: identity, reward and texts, of which anything else is an error
        (E5104).

        Raises:
            DataError: the payload cannot be read (E5101).
        """
        payload = self.experience_bytes
        if payload is not None:
            return Experience.deserialize(payload)
        return PrunedExperience(
            self.uid,
            reward=self.reward,
            prompt_text=self.prompt_text,
            response_text=self.response_text,
            model_version=self.model_version,
            reason=f"experience {self.uid} ({self.state}) has no payload any more: it was pruned after training or was "
            "too large; a larger buffer.keep_payloads keeps more of them",
        )

    @classmethod
    def from_experience(
        cls,
        experience: Experience,
        *,
        run: str = "",
        stage: str = "",
        buffer: str = "",
        producer: str = "",
        explore_step: int = 0,
    ) -> ExperienceModel:
        """Return a row, not yet in a session, that holds `experience`.

        Raises:
            DataError: `info` or `metrics` cannot be stored (E5102).
        """
        tags = {"run": run, "stage": stage, "buffer": buffer, "producer": producer, "explore_step": explore_step}
        return cls(**experience_values(experience), **tags)


def experience_values(experience: Experience, *, max_bytes: int = MAX_EXPERIENCE_BYTES) -> dict[str, Any]:
    """Return the columns of `experience` that follow from it alone.

    A payload above `max_bytes` is left out and the row is `dropped` with the reason `oversize`.

    Raises:
        DataError: `info` or `metrics` cannot be stored (E5102).
    """
    eid = experience.eid
    payload = experience.serialize()
    fits = len(payload) <= max_bytes
    return {
        "uid": eid.uid,
        "task_id": eid.tid,
        "run_id": eid.run,
        "msg_id": f"{eid.step}{eid.suffix}",
        "model_version": experience.info.get("model_version"),
        "reward": None if experience.reward is None else float(experience.reward),
        "state": READY if fits else DROPPED,
        "drop_reason": None if fits else "oversize",
        "prompt_text": storable_text(experience.prompt_text) if fits else None,
        "response_text": storable_text(experience.response_text) if fits else None,
        "payload_bytes": len(payload) if fits else None,
        "experience_bytes": payload if fits else None,
    }


def storable_text(text: str | None) -> str | None:
    """Return `text` without characters that databases refuse.

    Lone surrogates and NUL become a replacement mark.
    """
    if text is None:
        return None
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


class SFTDataModel(Base):
    """One conversation for SFT.

    Attributes:
        id: row number.
        message_list: messages of the conversation, the last one by the assistant.
    """

    __tablename__ = "sft"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    message_list: Mapped[list[dict[str, Any]]] = mapped_column(JSON)


class DPODataModel(Base):
    """One preference pair.

    Attributes:
        id: row number.
        chosen_message_list: the preferred conversation.
        rejected_message_list: the rejected conversation, with the same prompt.
    """

    __tablename__ = "dpo"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    chosen_message_list: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    rejected_message_list: Mapped[list[dict[str, Any]]] = mapped_column(JSON)


class TaskModel(Base):
    """One task.

    Attributes:
        id: row number.
        raw_task: the row of the taskset.
    """

    __tablename__ = "task"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    raw_task: Mapped[dict[str, Any]] = mapped_column(JSON)
