"""Operators that drop experiences; each counts what it dropped."""

from __future__ import annotations

import math
import statistics
from typing import Any

from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS
from trinity.common.experience import Experience, group_by

Result = tuple[list[Experience], dict[str, Any]]


def has_usable_reward(experience: Experience) -> bool:
    """Return whether the experience has a finite reward."""
    return experience.reward is not None and math.isfinite(experience.reward)


def _kept(before: list[Experience], kept: set[int]) -> Result:
    left = [experience for i, experience in enumerate(before) if i in kept]
    return left, {"filtered_count": len(before) - len(left)}


def _keep_groups(exps: list[Experience], names: set[str]) -> Result:
    return _kept(exps, {i for i, experience in enumerate(exps) if experience.group in names})


@EXPERIENCE_OPERATORS.register_module("reward_filter")
class RewardFilter(ExperienceOperatorV1):
    """Keeps experiences whose reward is at least a threshold.

    Experiences without a reward are dropped.

    Args:
        threshold: smallest reward that stays.
    """

    drops_experiences = True
    is_pure = True

    def __init__(self, threshold: float = 0.0) -> None:
        self.threshold = threshold

    async def process(self, exps: list[Experience]) -> Result:
        """Return the experiences with `reward >= threshold`."""
        return _kept(exps, {i for i, e in enumerate(exps) if e.reward is not None and e.reward >= self.threshold})


@EXPERIENCE_OPERATORS.register_module("reward_std_filter")
class RewardSTDFilter(ExperienceOperatorV1):
    """Drops groups whose rewards are all (nearly) equal.

    Args:
        threshold: a group stays if the population standard deviation of its rewards is above this.
    """

    drops_experiences = True
    is_pure = True

    def __init__(self, threshold: float = 0.0) -> None:
        self.threshold = threshold

    async def process(self, exps: list[Experience]) -> Result:
        """Return the groups whose reward deviation exceeds the threshold.

        A group needs two or more members.
        """
        kept = set()
        for name, group in group_by(exps, "task").items():
            rewards = [float(e.reward) for e in group if e.reward is not None and has_usable_reward(e)]
            if len(rewards) > 1 and statistics.pstdev(rewards) > self.threshold:
                kept.add(name)
        return _keep_groups(exps, kept)


@EXPERIENCE_OPERATORS.register_module("invalid_reward_filter")
class InvalidRewardFilter(ExperienceOperatorV1):
    """Drops experiences whose reward is missing, NaN or infinite."""

    drops_experiences = True
    is_pure = True

    async def process(self, exps: list[Experience]) -> Result:
        """Return the experiences with a finite reward."""
        return _kept(exps, {i for i, e in enumerate(exps) if has_usable_reward(e)})


@EXPERIENCE_OPERATORS.register_module("dapo_dynamic_sampling")
class DAPODynamicSampling(ExperienceOperatorV1):
    """Keeps groups of mixed success (DAPO, arXiv:2503.14476v2, eq. 11).

    Such a group has both correct and wrong members. In the paper further tasks are sampled until the batch is full;
    here `max_refill_batches` of the pipeline bounds how many, and with its default of 0 the batch shrinks, as
    published. A member without the metric counts as wrong.

    Args:
        metric_key: entry of `Experience.metrics` that says whether a response is correct.
        correct_threshold: a response is correct if the metric is above this.
    """

    drops_experiences = True
    is_pure = True

    def __init__(self, metric_key: str = "accuracy", correct_threshold: float = 0.0) -> None:
        self.metric_key = metric_key
        self.correct_threshold = correct_threshold

    async def process(self, exps: list[Experience]) -> Result:
        """Return the groups with `0 < number of correct members < size`."""
        kept, missing = set(), 0
        for name, group in group_by(exps, "task").items():
            values = [e.metrics.get(self.metric_key) for e in group]
            missing += values.count(None)
            correct = sum(value is not None and value > self.correct_threshold for value in values)
            if 0 < correct < len(group):
                kept.add(name)
        left, metrics = _keep_groups(exps, kept)
        return left, metrics | {"missing_metric_count": missing}
