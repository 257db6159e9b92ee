"""Which experiences of a log are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, exists, or_
from sqlalchemy.orm import aliased

from trinity.buffer.store.tables import StepExperienceModel
from trinity.common.schema.sql_schema import ExperienceModel


@dataclass(frozen=True)
class Wanted:
    """Which experiences are asked for.

    Attributes:
        buffer: name of the experience buffer; empty: of all.
        states: `ready`, `claimed`, `trained` or `dropped`; none: all.
        task: the group, `batch/task`; empty: all.
        text: part of the prompt or the response; empty: anything.
        least_reward: the smallest reward; None: any, or a missing one.
        most_reward: the largest reward; None: any, or a missing one.
        run: `project/name`; empty: of all runs.
        step: a training step that used them; None: used or not.
        below: only experiences with smaller ids; None: any.
        reason: why they were dropped, such as `stale`; empty: any reason, or not dropped.
    """

    buffer: str = ""
    states: Sequence[str] = ()
    task: str = ""
    text: str = ""
    least_reward: float | None = None
    most_reward: float | None = None
    run: str = ""
    step: int | None = None
    below: int | None = None
    reason: str = ""

    @property
    def is_loose(self) -> bool:
        """Whether there are conditions that no index covers."""
        return bool(self.text) or self.least_reward is not None or self.most_reward is not None

    def conditions(self, *, with_step: bool = True, is_read: bool = False) -> list[ColumnElement[bool]]:
        """Return the SQL conditions that a row has to meet.

        Args:
            with_step: include the condition on `step`.
            is_read: every row is read, so the condition on the run must not make the database search an index.
        """
        row, conditions = ExperienceModel, []
        run = row.run.concat("") if is_read else row.run
        if self.below is not None:
            conditions.append(row.id < self.below)
        if self.buffer:
            conditions.append(row.buffer == self.buffer)
        if self.run:
            conditions.append(run == self.run)
        if self.step is not None and with_step:
            used = aliased(StepExperienceModel)
            same = [getattr(used, name) == getattr(row, name) for name in ("run", "stage", "buffer", "uid")]
            conditions.append(exists().where(used.step == self.step, *same))
        if self.states:
            conditions.append(row.state.in_(self.states))
        if self.task:
            conditions.append(row.task_id == self.task)
        if self.reason:
            conditions.append(row.drop_reason == self.reason)
        if self.text:
            texts = (row.prompt_text, row.response_text)
            conditions.append(or_(*(text.contains(self.text, autoescape=True) for text in texts)))
        if self.least_reward is not None:
            conditions.append(row.reward >= self.least_reward)
        if self.most_reward is not None:
            conditions.append(row.reward <= self.most_reward)
        return conditions
