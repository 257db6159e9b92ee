"""GiGPO: group in group policy optimisation (arXiv:2505.10978v3).

    A = A_E + omega A_S  (eq. 8)

A_E (eq. 3) compares the rollouts of a task: the sum of a rollout's step rewards, minus the mean, over (F + epsilon).
A_S (eq. 5 to 7) compares steps that start from the same state of the environment: the discounted return from that step
on, minus the mean over the steps of equal state, divided by (F + epsilon). F is 1 (`none`) or the standard deviation
(`std`).

In A_E a group of one has mean 0 and F 1. A_S is 0 for a step without a state, and for one whose state no other step
has. Where no step of a rollout has a step reward, its last step gets the rollout's reward, the others 0. Where we
differ: steps are compared within a task, as in the paper; trinity-rft 0.6.0 compares equal states of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.advantage_fn import GroupAdvantage, reward_of, set_advantage
from trinity.algorithm.advantage_fn.step_wise_grpo import runs_of
from trinity.algorithm.statistics import group_mean, group_std
from trinity.common.errors import DataError
from trinity.common.experience import Experience


@ADVANTAGE_FN.register_module("gigpo")
class GiGPOAdvantage(GroupAdvantage):
    """Rollout advantage plus omega times step advantage.

    Args:
        omega: weight of the step advantage.
        gamma: discount a step, in [0, 1].
        fnorm: F is 1 for `none`, the unbiased standard deviation for `std`.
        epsilon: added to F.
        step_reward_key: key of `Experience.info` with the reward of a step.
        env_state_hash_key: key of `Experience.info` with the identity of the state that a step starts from.

    Raises:
        ValueError: an unknown `fnorm`, or a `gamma` outside [0, 1].
    """

    compares_steps = True
    summary = (
        "rollout advantage + omega times advantage among steps of equal state (arXiv:2505.10978v3, eq. 3, 5, 7 and 8)"
    )
    formula = (
        "n(episode) + {omega} n(step)"
        "\nepisode: the sum of the rollout's step rewards, among the rollouts of the task"
        "\nstep: the rewards from the step on, discounted by {gamma} a step, among steps from equal states; 0 "
        "where there is no other"
        "\n?fnorm=none n(x) = (x - mean) / (1 + {epsilon})"
        "\n?fnorm=std n(x) = (x - mean) / (std + {epsilon})"
    )
    needs = frozenset({"step_reward"})
    ranges = {"gamma": "[0, 1]", "fnorm": ("none", "std")}

    def __init__(
        self,
        omega: float = 1.0,
        gamma: float = 1.0,
        fnorm: str = "none",
        epsilon: float = 1e-6,
        step_reward_key: str = "step_reward",
        env_state_hash_key: str = "env_state_hash",
    ) -> None:
        if fnorm not in ("none", "std"):
            raise ValueError(f"fnorm must be none or std, got {fnorm!r}")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        self.omega = omega
        self.gamma = gamma
        self.fnorm = fnorm
        self.epsilon = epsilon
        self.step_reward_key = step_reward_key
        self.env_state_hash_key = env_state_hash_key

    def calculate_group_advantage(
        self, group_id: str, exps: list[Experience]
    ) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of one task; every experience is kept.

        Raises:
            DataError: a rollout has neither step rewards nor a reward, or a step reward is no finite number.
        """
        runs = runs_of(exps)
        rewards = [self._step_rewards(steps) for steps in runs]
        episodes = [sum(of_run) for of_run in rewards]
        episode_advantages = self._normalised(episodes)
        returns = [value for of_run in rewards for value in _discounted(of_run, self.gamma)]
        step_advantages = self._step_advantages([exp for steps in runs for exp in steps], returns)
        number = 0
        for steps, episode in zip(runs, episode_advantages, strict=True):
            for exp in steps:
                set_advantage(exp, episode + self.omega * step_advantages[number])
                number += 1
        return exps, {"reward_mean": group_mean(episodes), "reward_std": group_std(episodes)}

    def _step_advantages(self, exps: Sequence[Experience], returns: Sequence[float]) -> list[float]:
        states: dict[Any, list[int]] = {}
        for index, exp in enumerate(exps):
            state = exp.info.get(self.env_state_hash_key)
            if state is not None:
                states.setdefault(state, []).append(index)
        result = [0.0] * len(exps)
        for members in (indices for indices in states.values() if len(indices) > 1):
            for index, value in zip(members, self._normalised([returns[i] for i in members]), strict=True):
                result[index] = value
        return result

    def _normalised(self, values: Sequence[float]) -> list[float]:
        mean = group_mean(values)
        divisor = (group_std(values) if self.fnorm == "std" else 1.0) + self.epsilon
        return [(value - mean) / divisor for value in values]

    def _step_rewards(self, steps: Sequence[Experience]) -> list[float]:
        given = [exp.info.get(self.step_reward_key) for exp in steps]
        if all(reward is None for reward in given):
            return [0.0] * (len(steps) - 1) + [reward_of(steps[-1])]
        return [0.0 if reward is None else self._number(exp, reward) for exp, reward in zip(steps, given, strict=True)]

    def _number(self, exp: Experience, reward: Any) -> float:
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise DataError(
                f"experience {exp.eid.uid}: info[{self.step_reward_key!r}] must be a finite number, got {reward!r}",
                code="E4606",
            )
        return float(reward)


def _discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]
