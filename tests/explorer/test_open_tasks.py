"""Tasks that begin one by one: which step each of them is in, and what a snapshot says of them."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from trinity.explorer.open_tasks import Name, OpenTasks


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
