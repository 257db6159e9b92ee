"""How many tasks have rollouts of equal rewards, of which nothing is learned."""

from __future__ import annotations

from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import Repeating, make
from trinity.explorer.metrics import rollout_metrics

TIES = "rollout/frac_reward_zero_std"


def test_tasks_with_several_rollouts_of_one_reward_are_counted(rollouts: Rollouts) -> None:
    rewards = ([1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.5])
    result = rollouts.run([make(Repeating, len(each), rewards=each) for each in rewards])
    assert rollout_metrics(result)[TIES] == 2 / 3, "a single rollout is no tie"


def test_without_tasks_of_several_rollouts_there_is_no_share(rollouts: Rollouts) -> None:
    assert TIES not in rollout_metrics(rollouts.run([make(Repeating, 1, rewards=[1.0])]))
