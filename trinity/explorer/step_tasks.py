"""The tasks of explore steps and their replacements.

Tasks that produced nothing are replaced. The reader's position after each step is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from trinity.common.constants import SELECTOR_METRIC
from trinity.common.errors import WorkflowError
from trinity.explorer.outcome import BatchResult
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.task_reader import TaskReader
    from trinity.common.workflows.task import Task

logger = get_logger("explorer")

MAX_EMPTY_BATCHES = 3
TASKSET = "taskset"  # key of the reader's state in the snapshot

Call = Callable[..., Coroutine[Any, Any, Any]]


class StepTasks:
    """Reads the tasks of explore steps.

    Args:
        reader: of the taskset.
        batch_size: tasks of a step.
        call: runs a blocking call; the calls come one after the other.
    """

    def __init__(self, reader: TaskReader, *, batch_size: int, call: Call) -> None:
        self._reader = reader
        self._batch_size = batch_size
        self._call = call
        self._positions: dict[int, dict[str, Any]] = {}

    async def read(self, step: int) -> list[Task]:
        """Return the tasks of explore step `step`; none at the end of the taskset."""
        tasks, self._positions[step] = await self._call(self._read)
        return tasks

    async def replace(self, step: int, result: BatchResult, *, num_empty: int, is_first: bool) -> list[Task]:
        """Return the next tasks for `step`; empty at the end of the taskset.

        No run of the step has completed so far.

        A step in which everything failed is no step: it is not recorded, and its tasks come again after a resume
        only if no later tasks take their place.

        Args:
            step: number of the step.
            result: of the tasks that the others replace.
            num_empty: batches of tasks of which no run was completed, in a row.
            is_first: no step of the run was finished before.

        Raises:
            WorkflowError: it is the third batch in a row, or the only ones of the run (E5130).
        """
        tasks, position = await self._call(self._read)
        tell_of_empty(step, result, num_empty=num_empty, is_first=is_first, has_more=bool(tasks))
        if tasks:  # where later steps were read already, the place after the newest of them includes these tasks
            self._positions[max(self._positions)] = position
        return tasks

    async def feedback(self, given: Any) -> None:
        """Tell the selector how the tasks of a step went.

        Every kept position was taken before; what has been told since is kept with it.

        Args:
            given: what operators returned as `selector_metric`: `indices` and `values` by number of the taskset.

        Raises:
            WorkflowError: it is something else (E5162).
        """
        number = self._reader.config.index
        if not given:
            return
        try:
            ((of, told),) = given.items()
            told = json.loads(json.dumps(dict(told), default=_as_list))
        except (AttributeError, TypeError, ValueError):
            of, told = None, None
        if of != number or told is None:
            raise WorkflowError(
                f"the metric {SELECTOR_METRIC} of an experience operator must be {{{number}: {{'indices': [...], "
                f"'values': [...]}}}}, {number} being the taskset's number, got {str(given)[:100]}",
                code="E5162",
            )
        await self._call(partial(self._reader.feedback, **told))
        for kept in self._positions.values():
            kept["feedback"] = [*kept.get("feedback", ()), told]

    def finish(self, step: int) -> dict[str, Any]:
        """Return where the reader stood after the tasks of `step`, by taskset."""
        return {TASKSET: self._positions.pop(step)}

    def _read(self) -> tuple[list[Task], dict[str, Any]]:
        return self._reader.read(self._batch_size), self._reader.state_dict()


def tell_of_empty(step: int, result: BatchResult, *, num_empty: int, is_first: bool, has_more: bool) -> None:
    """Warn of tasks of which no run was completed.

    Args:
        step: that they were to be.
        result: of the tasks.
        num_empty: batches of tasks of which no run was completed, in a row.
        is_first: no step of the run was finished before.
        has_more: other tasks take their place.

    Raises:
        WorkflowError: it is the third batch in a row, or the only ones of the run (E5130).
    """
    if num_empty >= MAX_EMPTY_BATCHES or (is_first and not has_more):
        raise WorkflowError(
            f"explore step {step}: no run of {num_empty} batches of tasks in a row was completed; the commonest "
            f"reason: {result.reasons()[0]}; correct the workflow, the reward function or explorer.max_timeout: "
            "the same command then continues with the first of these tasks",
            code="E5130",
        )
    logger.warning(
        "explore step %d: no run was completed, %s; first: %s",
        step,
        "the next tasks take the place of its tasks" if has_more else "and no tasks are left: it is left out",
        result.reasons()[0],
    )


def _as_list(value: Any) -> Any:
    """Return an array or a number of NumPy or torch as Python has them."""
    return value.tolist()
