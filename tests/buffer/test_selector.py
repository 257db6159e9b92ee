"""Selectors: what they choose, and that they continue exactly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trinity.buffer.selector import SELECTOR_CONTENTS, SELECTORS, BaseSelector
from trinity.common.config.buffer import DataSelectorConfig
from trinity.common.errors import CheckpointError, DataError

# Those that read no columns; the others are in `test_difficulty`.
NAMES = sorted(name for name, entry in SELECTOR_CONTENTS.items() if entry.num_features == (0, 0))


def make(name: str, *, num_rows: int = 10, seed: int = 42) -> BaseSelector:
    return SELECTORS.get(name)(range(num_rows), DataSelectorConfig(selector_type=name, seed=seed))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", [0, 3, 10, 17])
def test_a_selector_continues_exactly(name: str, before: int) -> None:
    whole = make(name).get_indices(40)
    first = make(name)
    assert first.get_indices(before) == whole[:before]
    second = make(name)
    second.load_state_dict(first.state_dict())
    assert second.get_indices(40 - before) == whole[before:]


@pytest.mark.parametrize("name", NAMES)
def test_batch_size_does_not_change_the_order(name: str) -> None:
    by_one = make(name)
    assert [by_one.get_indices(1)[0] for _ in range(25)] == make(name).get_indices(25)


def test_sequential_starts_again_every_epoch() -> None:
    assert make("sequential", num_rows=3).get_indices(7) == [0, 1, 2, 0, 1, 2, 0]


def test_shuffle_takes_every_row_once_an_epoch_in_another_order() -> None:
    order = make("shuffle").get_indices(20)
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))
    assert order[:10] != order[10:] and order[:10] != list(range(10))
    assert make("shuffle", seed=1).get_indices(10) != order[:10]


def test_random_draws_from_the_whole_dataset() -> None:
    drawn = make("random", num_rows=4).get_indices(4000)
    shares = [drawn.count(row) / 4000 for row in range(4)]
    # The standard deviation of a share is 0.007.
    assert all(abs(share - 0.25) < 0.04 for share in shares)


@pytest.mark.parametrize("change", [{"num_rows": 11}, {"seed": 7}])
def test_a_position_in_another_dataset_is_refused(change: dict) -> None:
    with pytest.raises(CheckpointError, match=f"E7005.*{next(iter(change))}"):
        make("shuffle", **change).load_state_dict(make("shuffle").state_dict())


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="E4002"):
        make("sequential", num_rows=0)


def test_a_selector_can_say_more_and_hear_back() -> None:
    selector = make("sequential")
    assert selector.get_indices(2, return_extra_info=True) == ([0, 1], {})
    selector.feedback([0, 1], [1.0, 0.0])
    assert selector.get_indices(1) == [2]


def test_listing_selectors_and_checking_data_imports_nothing_heavy() -> None:
    code = "import sys, trinity.buffer.selector, trinity.preflight.data;"
    code += "print([m for m in ('torch', 'datasets', 'transformers', 'numpy', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
