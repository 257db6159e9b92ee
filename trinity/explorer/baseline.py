"""The baseline of ReMax: the reward of a greedy run, handed to the sampled runs of the same task."""

from __future__ import annotations

from collections.abc import Sequence

from trinity.common.experience import CustomField, Experience
from trinity.explorer.metrics import mean, summary
from trinity.explorer.outcome import BatchResult

INFO_KEY = "reward_baseline"
FIELD = CustomField(INFO_KEY, "reward_baselines")


def attach_baselines(result: BatchResult) -> dict[str, float]:
    """Give every sampled experience the reward of its task's greedy run, as the batch value `reward_baselines`.

    Returns:
        `rollout/baseline_reward/{mean,max,min}` over the tasks, and `rollout/failed_baseline_count`; nothing where the
        batch was run without greedy runs.
    """
    if result.baselines is None:
        return {}
    rewards = {task: run_reward(experiences) for task, experiences in result.completed_baselines.items()}
    for run, experiences in result.completed:
        for experience in experiences:
            experience.info[INFO_KEY] = rewards[run.task]
            experience.custom_fields = [*experience.custom_fields, FIELD]
    failed = float(len(result.baselines) - len(rewards))
    return summary("rollout/baseline_reward", list(rewards.values())) | {"rollout/failed_baseline_count": failed}


def run_reward(experiences: Sequence[Experience]) -> float:
    """Return the reward of a run: the mean over its experiences, each with the sum of its token rewards if any."""
    return mean([_reward(experience) for experience in experiences])


def _reward(experience: Experience) -> float:
    if experience.token_level_reward is not None:
        return float(experience.token_level_reward.sum())
    assert experience.reward is not None, "a completed run has rewards"
    return float(experience.reward)
