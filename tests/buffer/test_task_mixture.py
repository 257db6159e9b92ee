"""Several tasksets as one: shares, order, epochs and exact resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.buffer.files import taskset, write_jsonl
from trinity.buffer.task_mixture import TaskMixture
from trinity.buffer.task_reader import TaskReader
from trinity.common.errors import CheckpointError

SIZES = {"sums": 6, "words": 3}


def mixture(
    folder: Path, *, weights: tuple[float | None, ...] = (None, None), epochs: int = 1, seed: int = 42, **values
) -> TaskMixture:
    readers = []
    for index, ((name, size), weight) in enumerate(zip(SIZES.items(), weights, strict=True)):
        rows = [{"question": f"{name} {row}", "answer": "1", "weak": row / 10, "strong": 1.0} for row in range(size)]
        path = write_jsonl(folder / f"{name}.jsonl", rows)
        config = taskset(path, name=name, index=index, weight=weight, **values)
        readers.append(TaskReader(config, seed=seed, total_epochs=0))
    return TaskMixture(readers, batch_size=4, seed=seed, total_epochs=epochs)


def drawn(tasks: list) -> list[tuple[int, int]]:
    return [(task.index["taskset_id"], task.index["index"]) for task in tasks]


@pytest.mark.difference("`tasksets`")
def test_without_weights_every_row_of_every_taskset_comes_once_an_epoch(tmp_path: Path) -> None:
    source = mixture(tmp_path, epochs=2)
    steps = [drawn(source.read()) for _ in range(6)]
    assert [len(step) for step in steps] == [4, 4, 4, 4, 2, 0]  # 2 x 9 tasks: the last batch is incomplete
    rows = sum(steps, [])
    every = {(0, row) for row in range(6)} | {(1, row) for row in range(3)}
    assert set(rows[:9]) == set(rows[9:]) == every and len(rows) == 18
    of = [number for number, _ in rows]
    assert of[:9] != sorted(of[:9]) and of[:9] != of[9:]  # mixed, and every epoch in another way
    assert [row for number, row in rows[:9] if number == 0] == list(range(6))  # in the order of its own selector
    texts = {
        task.raw_task["question"].split()[0] for task in mixture(tmp_path).read(9) if task.index["taskset_id"] == 1
    }
    assert texts == {"words"}


def test_weights_are_shares_of_an_epoch_whatever_the_sizes(tmp_path: Path) -> None:
    # 9 tasks an epoch; 1 : 3 gives 2.25 and 6.75, so 2 and 7. The 3 rows of the second come several times.
    rows = drawn(mixture(tmp_path, weights=(1.0, 3.0)).read(9))
    assert Counter(number for number, _ in rows) == {0: 2, 1: 7}
    assert [row for number, row in rows if number == 1] == [0, 1, 2, 0, 1, 2, 0]
    # A share that rounds to nothing is still one task of an epoch.
    assert Counter(number for number, _ in drawn(mixture(tmp_path, weights=(1.0, 1e6)).read(9))) == {0: 1, 1: 8}


def test_the_order_follows_from_seed_and_position_alone(tmp_path: Path) -> None:
    whole = drawn(mixture(tmp_path, epochs=3).read(27))
    by_one = mixture(tmp_path, epochs=3)
    assert [drawn(by_one.read(1))[0] for _ in range(27)] == whole
    assert drawn(mixture(tmp_path, epochs=3, seed=7).read(27)) != whole


@pytest.mark.parametrize("selector", ["shuffle", "difficulty_based"])
def test_a_mixture_continues_exactly(tmp_path: Path, selector: str) -> None:
    settings = {"selector_type": selector}
    if selector == "difficulty_based":
        settings |= {"feature_keys": ["weak", "strong"], "kwargs": {"tau": 0.1}}

    def step(source: TaskMixture) -> list[tuple[int, int]]:
        rows = drawn(source.read())
        for number in {number for number, _ in rows}:
            own = [row for of, row in rows if of == number]
            source.by_number[number].feedback(indices=own, values=[0.1 * row for row in own])
        return rows

    def made() -> TaskMixture:
        return mixture(tmp_path, weights=(2.0, 1.0), epochs=4, data_selector=settings)

    whole, first, again = made(), made(), made()
    steps = [step(whole) for _ in range(9)]
    assert [step(first) for _ in range(4)] == steps[:4]
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [step(again) for _ in range(6)] == [*steps[4:], []]
    assert sum(map(len, steps)) == 36


def test_with_fewer_epochs_than_were_read_nothing_is_read_and_nothing_is_read_again(tmp_path: Path) -> None:
    first = mixture(tmp_path, epochs=2)
    first.read(12)  # of 9 tasks an epoch
    second = mixture(tmp_path, epochs=1)
    second.load_state_dict(first.state_dict())
    assert second.read(4) == []
    third = mixture(tmp_path, epochs=2)
    third.load_state_dict(second.state_dict())
    assert drawn(third.read(9)) == drawn(first.read(9)) and third.read() == []


def test_what_an_older_snapshot_holds_beside_a_position_is_told_again(tmp_path: Path) -> None:
    settings = {"selector_type": "difficulty_based", "feature_keys": ["weak", "strong"], "kwargs": {"tau": 0}}
    source, again = (mixture(tmp_path, data_selector=settings) for _ in range(2))
    source.read()
    state, told = source.state_dict(), {"indices": [2], "values": [1.0]}
    source.by_number[1].feedback(**told)
    state["tasksets"]["1"]["feedback"] = [told]
    again.load_state_dict(state)
    assert drawn(again.read(5)) == drawn(source.read(5))


def test_another_mixture_is_refused_on_resume(tmp_path: Path) -> None:
    state = mixture(tmp_path).state_dict()
    with pytest.raises(CheckpointError, match=r"E7005.*mixture.*shares"):
        mixture(tmp_path, weights=(1.0, 1.0)).load_state_dict(state)
    more = mixture(tmp_path, epochs=2)
    more.load_state_dict(mixture(tmp_path).state_dict())
    assert len(more.read(100)) == 18
