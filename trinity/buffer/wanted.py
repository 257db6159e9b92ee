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
        least_reward: the smallest reward; None: any, and none.
        most_reward: the largest reward; None: any, and none.
        run: `project/name`; empty: of all runs.
        step: a training step that used them; None: any, and none.
        below: they have smaller ids; None: any.
        reason: why they were dropped, as `stale`; empty: anything.
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
        """There are conditions that no index knows."""
        return bool(self.text) or self.least_reward is not None or self.most_reward is not None

    def conditions(self, *, with_step: bool = True, is_read: bool = False) -> list[ColumnElement[bool]]:
        """Return what a row has to meet.

        Args:
            with_step: `step`, too.
            is_read: each row is looked at, and no index is searched for a run.
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
