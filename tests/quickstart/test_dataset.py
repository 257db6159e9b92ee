"""The generated task: right answers, forgotten carries, and a test set that nothing leaks into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trinity.quickstart import dataset


def numbers(row: dict[str, str]) -> tuple[int, int]:
    left, right = row["question"].split("+")
    return int(left), int(right)


def result(row: dict[str, str]) -> int:
    return int(row["answer"].split("#### ")[1])


@pytest.mark.parametrize(
    ("text", "value"),
    # Test vectors of the hash's authors.
    [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)],
)
def test_the_hash_is_fnv1a(text: str, value: int) -> None:
    assert dataset.fnv1a_32(text) == value


@pytest.mark.parametrize(
    ("left", "right", "is_carrying", "text"),
    [
        (47, 58, True, "7+8+0=15,4+5+1=10\n#### 105"),
        (47, 58, False, "7+8+0=15,4+5+0=09\n#### 095"),
        (60, 70, True, "0+0+0=00,6+7+0=13\n#### 130"),
        (60, 70, False, "0+0+0=00,6+7+0=13\n#### 030"),
        (7, 2, True, "7+2+0=09,0+0+0=00\n#### 009"),
    ],
)
def test_the_working_is_written_out(left: int, right: int, is_carrying: bool, text: str) -> None:
    assert dataset.solution(left, right, is_carrying=is_carrying) == text


def test_every_solution_ends_with_the_sum() -> None:
    pairs = [(left, right) for left in range(100) for right in range(100)]
    assert all(int(dataset.solution(*pair).split("#### ")[1]) == sum(pair) for pair in pairs)


def test_a_tenth_is_held_out_and_mirrors_stay_together() -> None:
    held_out = [(a, b) for a in range(100) for b in range(100) if dataset.is_held_out(a, b)]
    assert 900 <= len(held_out) <= 1100
    assert all(dataset.is_held_out(b, a) for a, b in held_out)


def test_no_test_problem_and_no_mirror_of_one_is_trained_on() -> None:
    test = {frozenset(numbers(row)) for row in dataset.test_rows()}
    trained = {frozenset(numbers(row)) for rows in (dataset.train_rows(3), dataset.sft_rows(3)) for row in rows}
    assert not test & trained
    assert len({row["question"] for row in dataset.test_rows()}) == dataset.NUM_TEST


def test_three_quarters_of_the_demonstrations_forget_the_carry() -> None:
    rows = dataset.sft_rows(1)
    wrong = [row for row in rows if result(row) != sum(numbers(row))]
    # Two random digits carry with probability 0.45, so one of two columns does with 1 - 0.55^2 = 0.6975.
    assert len(wrong) / len(rows) == pytest.approx(0.75 * 0.6975, abs=0.02)


def test_the_reward_knows_every_right_answer() -> None:
    assert all(result(row) == sum(numbers(row)) for row in [*dataset.train_rows(1), *dataset.test_rows()])


def test_a_seed_gives_the_same_rows_and_another_gives_others() -> None:
    assert dataset.train_rows(5) == dataset.train_rows(5)
    assert dataset.train_rows(5) != dataset.train_rows(6)
    assert dataset.sft_rows(5) != dataset.sft_rows(6)


def test_files_are_one_object_a_line(tmp_path: Path) -> None:
    dataset.write_dataset(tmp_path, seed=1)
    lines = (tmp_path / "test.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == dataset.test_rows()
    assert len((tmp_path / "sft.jsonl").read_text().splitlines()) == dataset.NUM_SFT
