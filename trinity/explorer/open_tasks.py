"""Tasks that begin one by one and are put into explore steps as they end.

    read ---begin---> under way ---end---> done ---take_step---> in a step

A step takes the tasks that ended first, as many as were read for it, whenever they began: nobody waits for the
slowest. A task keeps the number of its reading and its place there, which its ids are made of, so that a resumed run
attempts it under the same ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trinity.explorer.step_tasks import OPEN, TASKSET, StepTasks

if TYPE_CHECKING:
    from trinity.common.workflows.task import Task

Name = tuple[int, int]
"""Number of the reading that brought a task, and its place there."""


@dataclass
class _Reading:
    size: int
    before: dict[str, Any]
    places: set[int]


@dataclass
class OpenTasks:
    """Where each task is that was read and is in no step.

    Attributes:
        last_number: of the readings.
        waiting: tasks that have not begun, in the order of reading.
        running: tasks under way.
        done: tasks that ended, in this order.
        sizes: tasks of the steps to come, one a reading.
    """

    last_number: int = 0
    waiting: deque[Name] = field(default_factory=deque)
    running: set[Name] = field(default_factory=set)
    done: deque[Name] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)
    _readings: dict[int, _Reading] = field(default_factory=dict)

    def add(self, size: int, *, before: dict[str, Any]) -> int:
        """Add a reading of `size` tasks, made from position `before`.

        Return its number. A step to come is as large.
        """
        self.last_number += 1
        self.sizes.append(size)
        self.restore(self.last_number, size, before=before, places=range(size))
        return self.last_number

    def restore(self, number: int, size: int, *, before: dict[str, Any], places: Iterable[int]) -> None:
        """Add the tasks at `places` of a reading, which are in no step."""
        self._readings[number] = _Reading(size, before, set(places))
        self.waiting.extend((number, place) for place in sorted(self._readings[number].places))

    def leave_out(self, number: int) -> None:
        """Take so many tasks out of the last steps to come.

        The run has fewer epochs than when they were read.
        """
        while number:
            size = self.sizes.pop()
            if size > number:
                self.sizes.append(size - number)
            number -= min(size, number)

    def divide(self, size: int) -> None:
        """Let each step to come but the last have `size` tasks.

        The run may be continued with another size, and the bound lets no more tasks begin than steps of that have.
        """
        total = sum(self.sizes)
        self.sizes = deque([size] * (total // size) + [total % size] * (total % size > 0))

    def begin(self) -> Name:
        """Begin the task that waits longest."""
        name = self.waiting.popleft()
        self.running.add(name)
        return name

    def end(self, name: Name) -> None:
        """Count a task as ended, whatever came of it."""
        self.running.remove(name)
        self.done.append(name)

    @property
    def has_step(self) -> bool:
        """Whether enough tasks ended for the next step."""
        return bool(self.sizes) and len(self.done) >= self.sizes[0]

    def take_step(self) -> list[Name]:
        """Take the tasks of the next step, sorted by name."""
        names = [self.done.popleft() for _ in range(self.sizes.popleft())]
        for number, place in names:
            reading = self._readings[number]
            reading.places.remove(place)
            if not reading.places:
                del self._readings[number]
        return sorted(names)

    def state_dict(self) -> dict[str, Any]:
        """Return what was read and is in no step, as plain JSON."""
        readings = [
            {"number": number, "size": each.size, "before": each.before, "places": sorted(each.places)}
            for number, each in sorted(self._readings.items())
        ]
        return {"last_number": self.last_number, "sizes": list(self.sizes), "readings": readings}


class StreamedTasks(StepTasks):
    """The tasks of explore steps whose tasks begin one by one.

    Attributes:
        open: where each of them is.
    """

    open: OpenTasks

    async def resume(self, readers: dict[str, Any], *, finished_step: int) -> None:
        """Read again what was open when `readers` was kept.

        Args:
            readers: what `finish` returned, or the state of a reader alone.
            finished_step: the last finished explore step, whose ids no other reading may have.
        """
        kept = readers.get(OPEN, {"last_number": finished_step, "sizes": [], "readings": []})
        self.open = OpenTasks(last_number=kept["last_number"], sizes=deque(kept["sizes"]))
        self._tasks: dict[Name, Task] = {}
        for each in kept["readings"]:
            reading = await self._read_again(each["before"], each["size"])
            number, places = each["number"], [place for place in each["places"] if place < len(reading.tasks)]
            self.open.leave_out(len(each["places"]) - len(places))
            self.open.restore(number, each["size"], before=each["before"], places=places)
            self._tasks |= {(number, place): reading.tasks[place] for place in places}
        self.open.divide(self._batch_size)
        await self._continue_at(readers[TASKSET])

    async def read_ahead(self) -> bool:
        """Read the tasks of one more step; return whether there are any."""
        reading = await self._read_on()
        if not reading.tasks:
            return False
        number = self.open.add(len(reading.tasks), before=reading.before)
        self._tasks |= {(number, place): task for place, task in enumerate(reading.tasks)}
        return True

    async def more(self, step: int, number: int) -> tuple[int, list[Task]]:
        """Return further tasks of `step`, as those of a reading of their own."""
        tasks = (await self._read_on(number)).tasks
        if tasks:
            self.open.last_number += 1
        return self.open.last_number, tasks

    def begin(self) -> tuple[Name, Task]:
        """Return the next task, which begins now."""
        name = self.open.begin()
        return name, self._tasks.pop(name)

    def finish(self, step: int) -> dict[str, Any]:
        """Return where the reader stands, and which tasks are in no step.

        What is taken into a step is in that step: `step` is the only one that was taken and is not finished.
        """
        return {TASKSET: self._newest, OPEN: self.open.state_dict()}
