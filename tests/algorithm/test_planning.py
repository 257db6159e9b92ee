"""How many steps each actor of a resolved configuration plans."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resolved import resolved
from trinity.algorithm.planning import num_rollouts, planned_steps, steps_by_actor

TASKSET = {"explorer_input": {"taskset": {"path": "tasks.jsonl", "repeat_times": 2}}}


def both(**buffer: Any) -> dict[str, Any]:
    return {
        "mode": "both",
        "algorithm": {"repeat_times": 4},
        "buffer": {"batch_size": 8, "train_batch_size": 16} | TASKSET | buffer,
    }


def test_each_mode_has_its_steps() -> None:
    explore = {"mode": "explore", "buffer": {"total_steps": 7, "batch_size": 1} | TASKSET}
    assert list(steps_by_actor(resolved(both(total_steps=40))).items()) == [("trainer", 40), ("explorer", 40)]
    assert steps_by_actor(resolved({"mode": "train", "trainer": {"name": "t", "total_steps": 9}})) == {"t": 9}
    assert steps_by_actor(resolved(explore)) == {"explorer": 7}
    assert steps_by_actor(resolved(both(total_epochs=2))) == {"trainer": None, "explorer": None}


def test_steps_that_only_the_data_tell_follow_from_the_rollouts_that_are_made() -> None:
    """Of each task come as many as the taskset says, not as the algorithm does: 5 x 8 x 2 of them, 16 a step."""
    config = resolved(both(total_epochs=2))
    assert planned_steps(config) is None
    assert planned_steps(config, 5) == 5


@pytest.mark.parametrize(("ratio", "own"), [(0.5, 8), (0.0, 16)])
def test_rows_of_an_expert_are_no_rollouts(ratio: float, own: int) -> None:
    values = both(total_steps=2, trainer_input={"auxiliary_buffers": {"sft_dataset": {"path": "d.jsonl"}}})
    values["algorithm"] = {"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": ratio}}
    assert num_rollouts(resolved(values)) == own
