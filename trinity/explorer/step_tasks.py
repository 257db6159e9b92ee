"""The tasks of explore steps and their replacements.

    read ---> open, in a step ---finish---> done

Tasks that produced nothing are replaced. A snapshot holds the position of the reader and, for tasks that were read but
are in no finished step, the position from which they were read: a resumed run reads the same tasks again, whatever the
selector has learned since.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trinity.common.constants import SELECTOR_METRIC
from trinity.common.errors import CheckpointError, WorkflowError
from trinity.explorer.outcome import BatchResult
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.task_mixture import TaskMixture
    from trinity.buffer.task_reader import TaskReader
    from trinity.common.workflows.task import Task

logger = get_logger("explorer")

MAX_EMPTY_BATCHES = 3
TASKSET = "taskset"  # key of the reader's state in the snapshot
OPEN = "open"  # key, beside it, of what was read and is in no finished step

Call = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Reading:
    """Tasks that were read together.

    Attributes:
        tasks: they.
        before: state of the reader before.
        after: state of the reader after.
    """

    tasks: list[Task]
    before: dict[str, Any]
    after: dict[str, Any]


@dataclass(frozen=True)
class _Opened:
    step: int
    size: int
    before: dict[str, Any]


class StepTasks:
    """Reads the tasks of explore steps.

    Args:
        reader: of the taskset, or of several ones.
        batch_size: tasks of a step.
        call: runs a blocking call; the calls come one after the other.
    """

    def __init__(self, reader: TaskReader | TaskMixture, *, batch_size: int, call: Call) -> None:
        self._reader = reader
        self._batch_size = batch_size
        self._call = call
        self._newest: dict[str, Any] = {}
        self._opened: list[_Opened] = []
        self._again: deque[Reading] = deque()

    async def resume(self, readers: dict[str, Any], *, finished_step: int) -> None:
        """Read again what was open when `readers` was kept.

        Args:
            readers: what `finish` returned, or the state of a reader alone.
            finished_step: the last finished explore step.

        Raises:
            CheckpointError: it was kept where tasks begin one by one, and some of a reading were done (E7016).
        """
        kept = readers.get(OPEN, {"last_number": finished_step, "readings": []})
        places = [each["places"] == list(range(each["size"])) for each in kept["readings"]]
        if not all(places) or kept["last_number"] != finished_step + len(places):
            raise CheckpointError(
                f"the snapshot after explore step {finished_step} has tasks that began one by one "
                "(synchronizer.update_in_flight with sync_style fully_async) and are in no step yet; continue with "
                "these settings, or start a new run",
                code="E7016",
            )
        for each in kept["readings"]:
            reading = await self._read_again(each["before"], each["size"])
            if reading.tasks:  # none where the run has fewer epochs now
                self._again.append(reading)
        await self._continue_at(readers[TASKSET])

    async def read(self, step: int) -> list[Task]:
        """Return the tasks of explore step `step`; none at the end of the taskset."""
        reading = self._again.popleft() if self._again else await self._read_on()
        if reading.tasks:
            self._opened.append(_Opened(step, len(reading.tasks), reading.before))
        return reading.tasks

    async def replace(self, step: int, result: BatchResult, *, num_empty: int, is_first: bool) -> list[Task]:
        """Return the next tasks for `step`; empty at the end of the taskset.

        No run of the step has completed so far, and a step without a completed run is not counted. If the run ends
        before the step is stored, a resumed run attempts all of its tasks again, also the replaced ones. At the end of
        the taskset there are no replacements, and the tasks of the step are left out.

        Args:
            step: number of the step.
            result: of the tasks that the others replace.
            num_empty: batches of tasks of which no run was completed, in a row.
            is_first: no step of the run was finished before.

        Raises:
            WorkflowError: it is the third such batch in a row, or no step was finished and no tasks are left (E5130).
        """
        tasks = await self.read(step)
        tell_of_empty(step, result, num_empty=num_empty, is_first=is_first, has_more=bool(tasks))
        if not tasks:
            self._end(step)
        return tasks

    async def more(self, step: int, number: int) -> tuple[int, list[Task]]:
        """Return further tasks of `step`, and what their ids begin with.

        The step is about to finish. There are `number` of them, or fewer at the end.
        """
        return step, (await self._read_on(number)).tasks

    async def feedback(self, given: Any) -> None:
        """Tell the selector how the tasks of a step went.

        Args:
            given: what operators returned as `selector_metric`: `indices` and `values` by number of the taskset, the
                first of which is 0.

        Raises:
            WorkflowError: it is something else (E5162).
        """
        try:
            told = {int(of): json.loads(json.dumps(dict(each), default=_as_list)) for of, each in dict(given).items()}
        except (AttributeError, TypeError, ValueError):
            told = {-1: {}}
        readers = self._reader.by_number
        if not told.keys() <= readers.keys():
            numbers = " or ".join(map(str, readers))
            raise WorkflowError(
                f"the metric {SELECTOR_METRIC} of an experience operator must be {{<number>: {{'indices': [...], "
                f"'values': [...]}}}}, the number being that of a taskset ({numbers}), got {str(given)[:100]}",
                code="E5162",
            )
        for number, each in sorted(told.items()):
            await self._call(partial(readers[number].feedback, **each))
        if told:
            self._newest = await self._call(self._reader.state_dict)

    def finish(self, step: int) -> dict[str, Any]:
        """Return where the reader stands, and what was read ahead.

        `step` is done.
        """
        self._end(step)
        opened = [(each.size, each.before) for each in self._opened]
        opened += [(len(each.tasks), each.before) for each in self._again]
        state = {TASKSET: self._newest}
        if not opened:
            return state
        # As the readings of tasks that begin one by one (`open_tasks`), of which all are there.
        readings = [
            {"number": number, "size": size, "before": before, "places": list(range(size))}
            for number, (size, before) in enumerate(opened, step + 1)
        ]
        return state | {
            OPEN: {"last_number": step + len(opened), "sizes": [size for size, _ in opened], "readings": readings}
        }

    def _end(self, step: int) -> None:
        self._opened = [each for each in self._opened if each.step != step]

    async def _read_on(self, number: int | None = None) -> Reading:
        """Read from where the reader stands."""
        reading: Reading = await self._call(self._read, number or self._batch_size)
        self._newest = reading.after
        return reading

    async def _read_again(self, before: dict[str, Any], size: int) -> Reading:
        await self._call(self._reader.load_state_dict, before)
        reading: Reading = await self._call(self._read, size)
        return reading

    async def _continue_at(self, state: dict[str, Any]) -> None:
        await self._call(self._reader.load_state_dict, state)
        self._newest = state

    def _read(self, number: int) -> Reading:
        before = self._reader.state_dict()
        return Reading(self._reader.read(number), before, self._reader.state_dict())


def tell_of_empty(step: int, result: BatchResult, *, num_empty: int, is_first: bool, has_more: bool) -> None:
    """Warn of tasks of which no run was completed.

    Args:
        step: that they were to be.
        result: of the tasks.
        num_empty: batches of tasks of which no run was completed, in a row.
        is_first: no step of the run was finished before.
        has_more: other tasks take their place.

    Raises:
        WorkflowError: it is the third such batch in a row, or no step was finished and no tasks are left (E5130).
    """
    if num_empty >= MAX_EMPTY_BATCHES or (is_first and not has_more):
        raise WorkflowError(
            f"explore step {step}: no rollout of {num_empty} batches of tasks in a row was completed; the most common "
            f"reason: {result.reasons()[0]}; correct the workflow, the reward function or explorer.max_timeout: "
            "the same command then continues with the first of these tasks",
            code="E5130",
        )
    logger.warning(
        "explore step %d: no rollout was completed, %s; first: %s",
        step,
        "the next tasks take the place of its tasks" if has_more else "and no tasks are left: it is left out",
        result.reasons()[0],
    )


def _as_list(value: Any) -> Any:
    """Return an array or a number of NumPy or torch as Python has them."""
    return value.tolist()
