"""Tasks that begin one by one: which step each of them is in, and what a snapshot says of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.buffer.files import taskset, write_jsonl
from trinity.buffer.selector import SELECTORS, BaseSelector
from trinity.buffer.task_reader import TaskReader
from trinity.common.errors import CheckpointError
from trinity.explorer.open_tasks import Name, OpenTasks, StreamedTasks
from trinity.explorer.outcome import BatchResult, Failed, RolloutResult
from trinity.explorer.step_tasks import StepTasks


def test_a_step_takes_what_ended_first_whenever_it_began() -> None:
    tasks = OpenTasks()
    assert [tasks.add(2, before={"at": at}) for at in (0, 2)] == [1, 2]
    begun = [tasks.begin() for _ in range(4)]
    assert begun == [(1, 0), (1, 1), (2, 0), (2, 1)] and not tasks.waiting
    for name in ((2, 1), (1, 1)):
        assert not tasks.has_step
        tasks.end(name)
    assert tasks.has_step and tasks.take_step() == [(1, 1), (2, 1)]
    kept = tasks.state_dict()
    assert kept["sizes"] == [2] and [each["places"] for each in kept["readings"]] == [[0], [0]]
    assert [each["before"] for each in kept["readings"]] == [{"at": 0}, {"at": 2}]
    for name in ((2, 0), (1, 0)):
        tasks.end(name)
    assert tasks.take_step() == [(1, 0), (2, 0)]
    assert tasks.state_dict() == {"last_number": 2, "sizes": [], "readings": []} and not tasks.has_step


@pytest.mark.parametrize("seed", range(5))
def test_every_task_is_in_one_step_in_whatever_order_they_end_and_over_interruptions(seed: int) -> None:
    """What is open when a snapshot is made is attempted again under its name; nothing else is."""
    draw = random.Random(seed)
    tasks, taken, kept = OpenTasks(), list[Name](), OpenTasks().state_dict()
    sizes = itertools.chain([3] * 5, [1])
    while True:
        if draw.random() < 0.3 and (size := next(sizes, None)):
            tasks.add(size, before={})
        if draw.random() < 0.5 and tasks.waiting:
            tasks.begin()
        if draw.random() < 0.5 and tasks.running:
            tasks.end(draw.choice(sorted(tasks.running)))
        if tasks.has_step:
            taken += tasks.take_step()
            kept = json.loads(json.dumps(tasks.state_dict()))
            if draw.random() < 0.3:
                sizes = itertools.chain([3] * (5 - kept["last_number"]), [1] if kept["last_number"] < 6 else [])
                tasks = restored(kept)
        if len(taken) == 16:
            break
    assert sorted(taken) == [(number, place) for number in range(1, 6) for place in range(3)] + [(6, 0)]


def restored(kept: dict[str, Any]) -> OpenTasks:
    """Return what a resumed run has of a snapshot."""
    tasks = OpenTasks(last_number=kept["last_number"])
    tasks.sizes.extend(kept["sizes"])
    for each in kept["readings"]:
        tasks.restore(each["number"], each["size"], before=each["before"], places=each["places"])
    return tasks


@SELECTORS.register_module("test_shifted_by_feedback")
class ShiftedByFeedback(BaseSelector):
    """In turn, with as many rows left out as it was told of."""

    told = 0

    def row_at(self, position: int) -> int:
        return (position + self.told) % self.num_rows

    def feedback(self, indices: Any, values: Any) -> None:
        self.told += len(indices)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"told": self.told}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.told = state_dict["told"]


async def call(function: Any, *args: Any) -> Any:
    return function(*args)


def rows_of(tasks: list[Any]) -> list[int]:
    return [task.index["index"] for task in tasks]


def forty_rows(folder: Path, selector: str = "test_shifted_by_feedback") -> Any:
    path = write_jsonl(folder / "rows.jsonl", [{"question": f"q{row}", "answer": "a"} for row in range(40)])
    return taskset(path, data_selector={"selector_type": selector}, total_epochs=1)


def test_batches_under_way_are_read_again_as_they_were_although_the_selector_was_told_more(tmp_path: Path) -> None:
    config, none = forty_rows(tmp_path), BatchResult(4, issued_run_count=4)
    none.results = [RolloutResult(0, 0, Failed("the tool is down"), 0.1)]

    async def scenario() -> None:
        reader = TaskReader(config)
        tasks = StepTasks(reader, batch_size=4, call=call)
        await tasks.resume({"taskset": reader.state_dict()}, finished_step=0)
        first = {step: rows_of(await tasks.read(step)) for step in (1, 2, 3)}
        replaced = rows_of(await tasks.replace(3, none, num_empty=1, is_first=True))
        await tasks.feedback({0: {"indices": [1, 2, 3], "values": [0.0, 1.0, 1.0]}})
        _, more = await tasks.more(1, 2)
        kept = json.loads(json.dumps(tasks.finish(1)))
        again = StepTasks(TaskReader(config), batch_size=4, call=call)
        await again.resume(kept, finished_step=1)
        assert [rows_of(await again.read(step)) for step in (2, 3)] == [first[2], first[3]]
        assert rows_of(await again.replace(3, none, num_empty=1, is_first=False)) == replaced
        assert json.loads(json.dumps(again.finish(2))) == json.loads(json.dumps(tasks.finish(2)))
        after = rows_of(await tasks.read(4))
        assert rows_of(await again.read(4)) == after and not set(after) & set(rows_of(more))

    asyncio.run(scenario())


def test_tasks_that_began_one_by_one_are_not_continued_in_batches(tmp_path: Path) -> None:
    config = forty_rows(tmp_path, "sequential")

    async def scenario() -> None:
        tasks = StreamedTasks(reader := TaskReader(config), batch_size=2, call=call)
        await tasks.resume({"taskset": reader.state_dict()}, finished_step=0)
        for _ in range(2):
            assert await tasks.read_ahead()
        for name, _ in [tasks.begin() for _ in range(4)]:
            if name in ((1, 0), (2, 1)):
                tasks.open.end(name)
        assert tasks.open.take_step() == [(1, 0), (2, 1)]
        kept, batches = tasks.finish(1), StepTasks(TaskReader(config), batch_size=2, call=call)
        with pytest.raises(CheckpointError, match=r"E7016.*update_in_flight"):
            await batches.resume(kept, finished_step=1)
        await batches.resume({"taskset": kept["taskset"]}, finished_step=1)
        assert rows_of(await batches.read(2)) == [4, 5] and rows_of(await batches.read(3)) == [6, 7]
        fewer = StreamedTasks(TaskReader(config), batch_size=2, call=call)
        await fewer.resume(batches.finish(2), finished_step=2)  # the other way round nothing is in the way
        assert [(name, *rows_of([task])) for name, task in (fewer.begin(), fewer.begin())] == [((3, 0), 6), ((3, 1), 7)]

    asyncio.run(scenario())


def test_open_tasks_are_read_again_as_they_were_although_the_selector_was_told_more(tmp_path: Path) -> None:
    config = forty_rows(tmp_path)

    def begun(tasks: StreamedTasks) -> dict[Name, int]:
        found = [tasks.begin() for _ in range(len(tasks.open.waiting))]
        return {name: task.index["index"] for name, task in found}

    async def scenario() -> None:
        reader = TaskReader(config)
        tasks = StreamedTasks(reader, batch_size=4, call=call)
        await tasks.resume({"taskset": reader.state_dict()}, finished_step=2)
        for _ in range(2):
            assert await tasks.read_ahead()
        first = begun(tasks)
        for name in ((3, 0), (4, 1), (3, 2), (4, 3)):
            tasks.open.end(name)
        assert tasks.open.take_step() == [(3, 0), (3, 2), (4, 1), (4, 3)]
        await tasks.feedback({0: {"indices": [1, 2], "values": [0.0, 1.0]}})
        assert await tasks.read_ahead()
        first |= begun(tasks)
        kept = json.loads(json.dumps(tasks.finish(3)))
        again = StreamedTasks(TaskReader(config), batch_size=4, call=call)
        await again.resume(kept, finished_step=3)
        left = {name: first[name] for name in ((3, 1), (3, 3), (4, 0), (4, 2), (5, 0), (5, 1), (5, 2), (5, 3))}
        assert begun(again) == left
        assert await tasks.read_ahead() and await again.read_ahead()
        assert begun(again) == begun(tasks)

    asyncio.run(scenario())
