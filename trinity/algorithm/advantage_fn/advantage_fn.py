"""The bases of advantage functions.

A token-level function is called with the named tensors it needs; a group function processes a list of experiences
in the experience pipeline, as an operator does (it has `process`, but need not inherit from an operator class).
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trinity.algorithm.statistics import group_mean, group_std
from trinity.common.constants import TRAJECTORY
from trinity.common.errors import DataError
from trinity.common.experience import Experience, group_by
from trinity.utils.declaration import Declared


class AdvantageFn(Declared):
    """Sets the advantages of experiences.

    Attributes:
        compares_rollouts: it compares the rollouts of a task with each other, so that one alone says nothing. For
            a function that the trainer calls, a parameter `uid` of `__call__` says so.
        compares_steps: it compares the steps of rollouts that have several.
    """

    kind = "advantage_fn"
    compares_rollouts: ClassVar[bool] = False
    compares_steps: ClassVar[bool] = False

    @classmethod
    def compute_in_trainer(cls) -> bool:
        """Return whether the trainer calls it with tensors.

        If not, the experience pipeline calls `process`.
        """
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in a checkpoint; empty without state.

        It may hold tensors, numbers, texts, lists and dicts, but no tensors if the experience pipeline calls `process`.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""


class GroupAdvantage(AdvantageFn, ABC):
    """An advantage that compares the rollouts of one task with each other."""

    compares_rollouts = True

    @classmethod
    def compute_in_trainer(cls) -> bool:
        """Return false: groups are complete in the pipeline, not in train batches."""
        return False

    def group_experiences(self, exps: Sequence[Experience]) -> dict[str, list[Experience]]:
        """Return the experiences by group: those of one task of one batch."""
        return group_by(exps, "task")

    @abstractmethod
    def calculate_group_advantage(
        self, group_id: str, exps: list[Experience]
    ) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of one group.

        Return the experiences to keep, and metrics.
        """

    def __call__(self, exps: list[Experience], **kwargs: Any) -> tuple[list[Experience], dict[str, float]]:
        """Same as `process`; further arguments are ignored."""
        return self.process(exps)

    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of all experiences, group by group.

        Returns:
            The experiences to keep, and `group_advantages/<metric>/{mean,max,min}` with `filtered_count`.
        """
        kept: list[Experience] = []
        rows: list[dict[str, float]] = []
        for group_id, group in self.group_experiences(exps).items():
            group_kept, metrics = self.calculate_group_advantage(group_id, group)
            kept.extend(group_kept)
            rows.append(metrics)
        return kept, summarise_groups(rows) | {"filtered_count": float(len(exps) - len(kept))}


class RewardGroupAdvantage(GroupAdvantage):
    """One number per response, from the rewards of the same task's rollouts."""

    @abstractmethod
    def compare(self, rewards: Sequence[float]) -> list[float]:
        """Return the advantage of each rollout of one group."""

    def calculate_group_advantage(
        self, group_id: str, exps: list[Experience]
    ) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of one group; every experience is kept.

        Raises:
            DataError: an experience has no reward.
        """
        rollouts = rollouts_of(exps)
        rewards = by_rollout([reward_of(exp) for exp in exps], rollouts)
        compared = self.compare(rewards)
        for exp, rollout in zip(exps, rollouts, strict=True):
            set_advantage(exp, compared[rollout])
        return exps, {"reward_mean": group_mean(rewards), "reward_std": group_std(rewards)}


def reward_of(exp: Experience) -> float:
    """Return the reward of an experience.

    Raises:
        DataError: it has none (E4601).
    """
    if exp.reward is None:
        raise DataError(f"experience {exp.eid.uid}: a group advantage needs a reward, got None", code="E4601")
    return float(exp.reward)


def rollouts_of(exps: Sequence[Experience]) -> list[int]:
    """Return the number of the rollout as which each experience counts.

    The trajectories of one rollout count as one if they have one reward. Every other experience counts for itself.
    """
    rewards: dict[str, set[float | None]] = {}
    for exp in exps:
        if TRAJECTORY in exp.info:
            rewards.setdefault(exp.eid.rid, set()).add(exp.reward)
    numbers: dict[str | int, int] = {}
    is_one = [TRAJECTORY in exp.info and len(rewards[exp.eid.rid]) == 1 for exp in exps]
    names = (exp.eid.rid if one else place for place, (exp, one) in enumerate(zip(exps, is_one, strict=True)))
    return [numbers.setdefault(name, len(numbers)) for name in names]


def by_rollout(values: Sequence[float], rollouts: Sequence[int]) -> list[float]:
    """Return the mean of each rollout, exact for equal values.

    Args:
        values: one for each experience.
        rollouts: what `rollouts_of` returns.
    """
    found: list[list[float]] = [[] for _ in set(rollouts)]
    for value, rollout in zip(values, rollouts, strict=True):
        found[rollout].append(value)
    return [own[0] if len(set(own)) == 1 else statistics.fmean(own) for own in found]


def set_advantage(exp: Experience, value: float) -> None:
    """Set advantages and returns to `value`.

    Every token that the policy did not produce gets 0.
    """
    assert exp.action_mask is not None, "Experience fills action_mask"
    exp.advantages = exp.action_mask.float() * value
    exp.returns = exp.advantages.clone()


def summarise_groups(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return mean, maximum and minimum of each metric over the groups.

    Their names are `group_advantages/<metric>/<what>`.
    """
    result: dict[str, float] = {}
    for name in sorted({name for row in rows for name in row}):
        values = [row[name] for row in rows if name in row]
        result[f"group_advantages/{name}/mean"] = sum(values) / len(values)
        result[f"group_advantages/{name}/max"] = max(values)
        result[f"group_advantages/{name}/min"] = min(values)
    return result
