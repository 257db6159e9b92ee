"""`seed` is the seed of everything that is not seeded elsewhere: rollouts, order of the tasks, and what is derived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.tiny_run import PLAIN, TinyRun
from trinity.launch.validation import check

pytestmark = pytest.mark.slow

HEARD = """
from trinity.common.rewards import REWARD_FUNCTIONS


@REWARD_FUNCTIONS.register_module("hear")
def hear(response, prompt=None):
    with open("heard.txt", "a") as file:
        file.write(repr(response) + chr(10))
    return float(len(set(response)))
"""
SHUFFLED = {"buffer__explorer_input__taskset__data_selector": {"selector_type": "shuffle"}}
REWARD = {"buffer__explorer_input__default_reward_fn_type": "hear"}


def _said(folder: Path, seed: int, **changes: object) -> list[str]:
    run = TinyRun(folder, plugin=HEARD).change(seed=seed, **REWARD, **changes)
    run.write_rows([{"question": f"{a}+{a + 1}=", "answer": str(2 * a + 1)} for a in range(8)])
    ended = run.finish()
    assert ended.status == 0, ended.output[-2000:]
    return sorted((folder / "heard.txt").read_text().splitlines())


@pytest.mark.difference("`seed`")
def test_another_seed_gives_other_rollouts_and_the_same_seed_the_same(tmp_path: Path) -> None:
    first, again, other = (_said(tmp_path / str(number), seed) for number, seed in enumerate((1, 1, 2)))
    assert first == again and not set(first) & set(other)


def test_seeds_that_are_written_stay(tmp_path: Path) -> None:
    changes = {"explorer__rollout_model": {"dtype": "float32", "seed": 5}, **SHUFFLED}
    changes["buffer__explorer_input__taskset__data_selector"]["seed"] = 42
    first, other = (_said(tmp_path / str(seed), seed, **changes) for seed in (1, 2))
    assert first[: len(other)] == other


@pytest.mark.difference("`seed`")
def test_every_seed_of_the_configuration_follows_the_one(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(PLAIN | {"seed": 7}))
    plan, found = check(file, schema_only=True)
    assert not [problem for problem in found if problem.is_error]
    config = plan.stages[0].config
    assert config.explorer.rollout_model.seed == config.buffer.explorer_input.taskset.data_selector.seed == 7
