"""REC: group-relative REINFORCE (arXiv:2509.24203).

    A_i = r_i - mean,  or  (r_i - mean) / (population standard deviation + epsilon)

If a group has more negatives (rewards below the mean) than positives, `drop: balance` drops the surplus, chosen at
random: these rollouts get advantage 0 and do not count in mean and standard deviation. The choice is seeded by the
group's id, so that it is the same in every run. Where we differ: a group of one keeps its reward (mean 0, standard
deviation 1), as in `grpo`; trinity-rft 0.6.0 raises UnboundLocalError.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.advantage_fn import (
    GroupAdvantage,
    by_rollout,
    reward_of,
    rollouts_of,
    set_advantage,
)
from trinity.algorithm.statistics import group_mean, group_std
from trinity.common.experience import Experience


@ADVANTAGE_FN.register_module("rec")
class RECGroupedAdvantage(GroupAdvantage):
    """Reward minus the mean of the kept rollouts of the task.

    Args:
        epsilon: added to the standard deviation.
        std_normalize: divide by the standard deviation.
        drop: `balance` drops surplus negatives; None keeps all.

    Raises:
        ValueError: an unknown `drop`.
    """

    summary = "reward - mean, optionally without surplus negatives (arXiv:2509.24203)"
    formula = (
        "(R - mean(R)) / divisor"
        "\n?std_normalize divisor = std(R) + {epsilon}, of the population"
        "\n?std_normalize=False divisor = 1"
        "\n?drop=balance rollouts below the mean that outnumber the others get 0 and leave mean and std"
    )
    ranges = {"drop": ("balance",)}

    def __init__(self, epsilon: float = 1e-6, std_normalize: bool = False, drop: str | None = None) -> None:
        if drop not in (None, "balance"):
            raise ValueError(f"drop must be null or balance, got {drop!r}")
        self.epsilon = epsilon
        self.std_normalize = std_normalize
        self.drop = drop

    def calculate_group_advantage(
        self, group_id: str, exps: list[Experience]
    ) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of one group.

        A dropped rollout stays in the batch with advantage 0.
        """
        rollouts = rollouts_of(exps)
        rewards = by_rollout([reward_of(exp) for exp in exps], rollouts)
        dropped = _surplus_negatives(rewards, group_id) if self.drop == "balance" else set()
        kept = [reward for index, reward in enumerate(rewards) if index not in dropped]
        mean, std = group_mean(kept), group_std(kept, is_population=True)
        divisor = std + self.epsilon if self.std_normalize else 1.0
        for exp, rollout in zip(exps, rollouts, strict=True):
            set_advantage(exp, 0.0 if rollout in dropped else (rewards[rollout] - mean) / divisor)
        return exps, {"reward_mean": mean, "reward_std": std, "num_dropped": float(len(dropped))}


def _surplus_negatives(rewards: Sequence[float], group_id: str) -> set[int]:
    mean = group_mean(rewards)
    negatives = [index for index, reward in enumerate(rewards) if reward < mean]
    surplus = len(negatives) - (len(rewards) - len(negatives))
    if surplus <= 0:
        return set()
    digest = hashlib.sha256(group_id.encode()).digest()
    return set(random.Random(int.from_bytes(digest[:8], "big")).sample(negatives, surplus))
