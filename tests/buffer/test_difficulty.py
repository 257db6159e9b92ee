"""The selectors that know of difficulty: easy rows first, or rows near a target pass rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.buffer.files import taskset, write_jsonl
from trinity.buffer.selector.difficulty import DifficultyBasedSelector
from trinity.buffer.selector.easy2hard import OfflineEasy2HardSelector
from trinity.buffer.task_reader import TaskReader
from trinity.common.config.buffer import DataSelectorConfig
from trinity.common.errors import ConfigError, DataError

KEYS = ("weak", "strong")
# Pass rates of a weaker and a stronger model on four tasks.
RATES = [(0.0, 0.2), (0.2, 0.6), (0.4, 1.0), (0.6, 1.0)]


class Columns:
    """A dataset of columns, as selectors see it."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows = rows
        self.dataset_size = len(rows)
        self.dataset = self
        self.column_names = list(rows[0])

    def __iter__(self):
        return iter(self.rows)


def source(rates=RATES) -> Columns:
    return Columns([{"weak": weak, "strong": strong} for weak, strong in rates])


def difficulty(rates=RATES, **kwargs) -> DifficultyBasedSelector:
    settings = DataSelectorConfig(
        selector_type="difficulty_based", seed=7, feature_keys=KEYS, kwargs={"m": 10, "lamb": 0.5, "rho": 0.2} | kwargs
    )
    return DifficultyBasedSelector(source(rates), settings)


@pytest.mark.difference("`offline_easy2hard`")
def test_easy_rows_come_first_and_equal_ones_in_the_order_of_the_dataset() -> None:
    rows = Columns([{"a": 0.5, "b": 1}, {"a": 0.9, "b": 0}, {"a": 0.5, "b": 3}, {"a": 0.5, "b": 1}])
    config = DataSelectorConfig(selector_type="offline_easy2hard", feature_keys=("a", "b"))
    selector = OfflineEasy2HardSelector(rows, config)
    assert selector.get_indices(6) == [1, 2, 0, 3, 1, 2]
    second = OfflineEasy2HardSelector(rows, config)
    second.load_state_dict(selector.state_dict())
    assert second.get_indices(2) == [0, 3]


def test_the_update_is_that_of_the_paper() -> None:
    selector = difficulty()
    # Tasks 1 and 2 were attempted: means of rewards 0.5 and 0.8; m = 10, lamb = 0.5, rho = 0.2.
    selector.feedback([2, 1], [0.8, 0.5])
    # c = (0.65 - 0.3) / (0.8 - 0.3) = 0.7
    assert selector.capability == pytest.approx(0.7)
    # p~ of the others: 0.0 + 0.7 * 0.2 = 0.14 and 0.6 + 0.7 * 0.4 = 0.88, with weight 0.2 * 10 = 2.
    # All begin with alpha = beta = 1, of which 0.5 * 1 + 0.5 = 1 is left.
    assert selector.alphas == pytest.approx(np.array([1.28, 6.0, 9.0, 2.76]))
    assert selector.betas == pytest.approx(np.array([2.72, 6.0, 3.0, 1.24]))
    # The second step tells of task 0 only: c_0 = (0.1 - 0) / 0.2 = 0.5, so c = 0.9 * 0.7 + 0.1 * 0.5 = 0.68.
    selector.feedback([0], [0.1])
    assert selector.capability == pytest.approx(0.68)
    # Task 0: alpha 0.5 * 1.28 + 0.5 + 1 = 2.14; task 3, p~ 0.872: 0.5 * 2.76 + 0.5 + 1.744 = 3.624.
    assert selector.alphas[[0, 3]] == pytest.approx([2.14, 3.624])
    assert selector.betas[[0, 3]] == pytest.approx([0.5 * 2.72 + 0.5 + 9, 0.5 * 1.24 + 0.5 + 0.256])


def test_tasks_near_the_target_are_preferred() -> None:
    selector = difficulty(tau=0, target_reward=0.5)
    selector.feedback([2, 1], [0.8, 0.5])
    # Means 0.32, 0.5, 0.75 and 0.69: distances from 0.5 are 0.18, 0, 0.25 and 0.19.
    assert selector.get_indices(4) == [1, 0, 3, 2]
    rows, told = difficulty(tau=0, target_reward=1.0).get_indices(2, return_extra_info=True)
    assert rows == [0, 1] and told["point"] == [0.5, 0.5] and told["scores"] == [-0.5, -0.5]


def test_the_temperature_is_that_of_a_softmax() -> None:
    selector = difficulty([(0.0, 1.0)] * 2, tau=0.25, target_reward=1.0)
    selector.alphas, selector.betas = np.array([3.0, 1.0]), np.array([1.0, 1.0])
    # Scores -0.25 and -0.5, so logits -1 and -2: the first comes with probability 1 / (1 + e^-1) = 0.731.
    first = [selector.get_indices(1)[0] for _ in range(4000)].count(0) / 4000
    assert first == pytest.approx(0.731, abs=0.03)  # the standard deviation is 0.007


def test_thompson_sampling_draws_from_the_belief() -> None:
    selector = difficulty([(0.0, 1.0)] * 2, tau=0, target_reward=1.0, do_sample=True)
    selector.alphas, selector.betas = np.array([1.0, 1.0]), np.array([1.0, 3.0])
    # P(X > Y) of X ~ Beta(1, 1) and Y ~ Beta(1, 3) is E[(X > Y)] = 1 - 1/4 = 0.75.
    first = [selector.get_indices(1)[0] for _ in range(4000)].count(0) / 4000
    assert first == pytest.approx(0.75, abs=0.03)


@pytest.mark.difference("`difficulty_based` after a resume")
@pytest.mark.parametrize("kwargs", [{}, {"tau": 0, "do_sample": True}, {"adaptive_rho": True}])
def test_choice_and_belief_continue_exactly(kwargs: dict) -> None:
    def step(selector: DifficultyBasedSelector) -> list[int]:
        rows = selector.get_indices(3)
        selector.feedback(rows, [0.1 * row for row in rows])
        return rows

    whole = difficulty(**kwargs)
    steps = [step(whole) for _ in range(6)]
    first, second = difficulty(**kwargs), difficulty(**kwargs)
    assert [step(first) for _ in range(3)] == steps[:3]
    second.load_state_dict(first.state_dict())
    assert [step(second) for _ in range(3)] == steps[3:]
    assert np.array_equal(second.alphas, whole.alphas) and second.rho == whole.rho
    assert second.capability == whole.capability


def test_rho_halves_while_the_interpolation_is_far_off() -> None:
    selector = difficulty(adaptive_rho=True)
    selector.feedback([1], [0.6])  # c = 1, p~ = 0.6: right
    assert selector.rho == 0.2
    selector.feedback([2, 3], [0.0, 0.0])  # p~ is far above 0
    assert selector.rho == 0.1


def test_a_batch_larger_than_the_dataset_takes_no_row_twice_within_a_pass() -> None:
    rows = difficulty().get_indices(8)
    assert sorted(rows[:4]) == sorted(rows[4:]) == [0, 1, 2, 3]


def test_rewards_outside_of_pass_rates_are_cut_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    odd, even = difficulty(), difficulty()
    odd.feedback([1, 2], [-0.1, 1.5])
    even.feedback([1, 2], [0.0, 1.0])
    assert np.array_equal(odd.alphas, even.alphas) and "cut to pass rates" in caplog.text


def test_references_that_agree_on_a_step_say_nothing_of_the_model() -> None:
    selector = difficulty([(0.3, 0.3), (0.1, 0.9)])
    selector.feedback([0], [0.5])
    # Without c there is no implicit evidence: task 1 keeps its prior.
    assert selector.capability is None and selector.alphas == pytest.approx([6.0, 1.0])


def reader(folder: Path, rows: list[dict], *, keys=KEYS, name: str = "difficulty_based") -> TaskReader:
    path = write_jsonl(folder / "data.jsonl", rows)
    return TaskReader(taskset(path, data_selector={"selector_type": name, "feature_keys": keys}))


def test_the_reader_tells_its_selector(tmp_path: Path) -> None:
    rows = [{"question": f"{n}", "answer": "1", "weak": str(w), "strong": s} for n, (w, s) in enumerate(RATES)]
    tasks = reader(tmp_path, rows)
    tasks.feedback(indices=[1], values=[1.0])
    again = reader(tmp_path, rows)
    again.load_state_dict(tasks.state_dict())
    assert [task.index for task in again.read(3)] == [task.index for task in tasks.read(3)]


def test_rows_without_their_numbers_are_set_aside_and_missing_columns_are_errors(tmp_path: Path) -> None:
    rows = [{"question": "1", "answer": "1", "weak": 0.1, "strong": 0.5} for _ in range(3)]
    rows[1]["weak"] = None
    (bad,) = reader(tmp_path, rows).quarantined
    assert (bad.line, bad.key, bad.code) == (2, "weak", "E4013")
    with pytest.raises(DataError, match=r"E4004.*'weka'.*did you mean 'weak'"):
        reader(tmp_path, rows, keys=("weka", "strong"))
    with pytest.raises(ConfigError, match="E1891"):
        reader(tmp_path, rows, keys=("weak",))
