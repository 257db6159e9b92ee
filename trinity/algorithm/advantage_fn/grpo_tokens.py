"""Group-normalised advantages in the trainer.

    grpo         A_i = (s_i - mean) / (std + epsilon)              arXiv:2402.03300v3, section 4.1.2
    Dr. GRPO     A_i = s_i - mean                                  arXiv:2503.20783v2, section 3.2
    grpo_passk   A_best = (s_best - s_second) / (std + epsilon), 0 for the others; arXiv:2503.19595v2, section 3.1
    gdpo         A = whiten(sum over k of weight_k grpo(reward component k)); arXiv:2601.05242

s_i is the score: the sum of the token rewards. The standard deviation is the unbiased one of the task's scores.

Dimension key: B = responses, T = response positions, K = reward components.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import (
    Advantages,
    GroupedTokenAdvantage,
    TokenAdvantage,
    by_group,
    spread,
)
from trinity.algorithm.statistics import group_mean, group_std, masked_whiten
from trinity.common.errors import DataError


@ADVANTAGE_FN.register_module("grpo_verl")
class GRPOAdvantage(GroupedTokenAdvantage):
    """Scores normalised within a task. Name: `grpo_verl`.

        A_i = (s_i - mean) / (std + epsilon)

    Equal scores give exactly 0. A group of one has mean 0 and std 1.

    Args:
        epsilon: added to the standard deviation.
    """

    summary = "grpo, in the trainer (arXiv:2402.03300v3, section 4.1.2)"
    formula = "(R - mean(R)) / (std(R) + {epsilon})"
    norm_adv_by_std_in_grpo = True

    def __init__(self, epsilon: float = 1e-6) -> None:
        self.epsilon = epsilon

    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return the normalised scores."""
        return grpo_advantages(scores, self.epsilon, norm_adv_by_std_in_grpo=self.norm_adv_by_std_in_grpo)


@ADVANTAGE_FN.register_module("verl_grpo")
@ADVANTAGE_FN.register_module("verl_grpo_vectorized")
class VerlGRPOAdvantage(GRPOAdvantage):
    """`GRPOAdvantage`, with or without division by the deviation.

    veRL's names for it are `verl_grpo` and `verl_grpo_vectorized`.

    Args:
        epsilon: added to the standard deviation.
        norm_adv_by_std_in_grpo: false only subtracts the mean (Dr. GRPO).
    """

    summary = "as grpo_verl; Dr. GRPO without the standard deviation (arXiv:2503.20783v2, section 3.2)"
    formula = (
        "(R - mean(R)) / divisor"
        "\n?norm_adv_by_std_in_grpo divisor = std(R) + {epsilon}"
        "\n?norm_adv_by_std_in_grpo=False divisor = 1: no division by the standard deviation"
    )

    def __init__(self, epsilon: float = 1e-6, norm_adv_by_std_in_grpo: bool = True) -> None:
        super().__init__(epsilon)
        self.norm_adv_by_std_in_grpo = norm_adv_by_std_in_grpo


@ADVANTAGE_FN.register_module("verl_grpo_passk")
@ADVANTAGE_FN.register_module("grpo_passk")
class GRPOPassKAdvantage(VerlGRPOAdvantage):
    """Gain of a task's best rollout over the second best.

    The others get 0. The arguments are those of `verl_grpo`.
    """

    summary = "best - second best of the task, in the trainer (arXiv:2503.19595v2, section 3.1)"
    formula = (
        "(best R - second best R) / divisor for the best rollout, 0 for the others"
        "\n?norm_adv_by_std_in_grpo divisor = std(R) + {epsilon}"
        "\n?norm_adv_by_std_in_grpo=False divisor = 1: no division by the standard deviation"
    )

    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return the gain at the first of the best scores and 0 elsewhere.

        Raises:
            DataError: a group of one has no second best (E4607).
        """
        if len(scores) < 2:
            raise DataError("grpo_passk needs two or more rollouts of each task, got a task with one", code="E4607")
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        gain = scores[order[0]] - scores[order[1]]
        divisor = group_std(scores) + self.epsilon if self.norm_adv_by_std_in_grpo else 1.0
        return [gain / divisor if index == order[0] else 0.0 for index in range(len(scores))]


@ADVANTAGE_FN.register_module("verl_gdpo")
@ADVANTAGE_FN.register_module("gdpo")
class GDPOAdvantage(TokenAdvantage):
    """Reward components, each group-normalised, weighted and summed.

    The sum is whitened over the batch.

    Args:
        epsilon: added to the standard deviations.
        norm_adv_by_std_in_grpo: false only subtracts the means.
        gdpo_reward_weights: one weight a component; all 1 by default.
        gdpo_reward_keys: the metrics of an experience that are its components; read by the explorer.
    """

    summary = "each component of the reward normalised on its own, in the trainer (arXiv:2601.05242)"
    formula = (
        "whiten(sum over the reward components k of w(k) (R(k) - mean(R(k))) / divisor)"
        "\n?gdpo_reward_weights w = {gdpo_reward_weights}"
        "\n?gdpo_reward_weights=None w(k) = 1"
        "\n?gdpo_reward_keys components: {gdpo_reward_keys}"
        "\n?norm_adv_by_std_in_grpo divisor = std(R(k)) + {epsilon}"
        "\n?norm_adv_by_std_in_grpo=False divisor = 1: no division by the standard deviation"
        "\nwhiten(x) = (x - mean) / sqrt(variance + 1e-8) over the tokens of the batch"
    )

    def __init__(
        self,
        epsilon: float = 1e-6,
        norm_adv_by_std_in_grpo: bool = True,
        gdpo_reward_weights: Sequence[float] | None = None,
        gdpo_reward_keys: Sequence[str] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.norm_adv_by_std_in_grpo = norm_adv_by_std_in_grpo
        self.gdpo_reward_weights = gdpo_reward_weights
        self.gdpo_reward_keys = gdpo_reward_keys

    def __call__(
        self,
        reward_components: Float[Tensor, "B K"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
    ) -> Advantages:
        """Return the whitened numbers, as advantages and as returns.

        Raises:
            DataError: the number of weights is not that of the components (E4608).
        """
        columns = [[float(value) for value in column] for column in reward_components.double().t().tolist()]
        weights = self.gdpo_reward_weights or [1.0] * len(columns)
        if len(weights) != len(columns):
            raise DataError(
                f"gdpo_reward_weights must have one weight a reward component ({len(columns)}), got {len(weights)}",
                code="E4608",
            )
        total = [0.0] * len(reward_components)
        for weight, column in zip(weights, columns, strict=True):
            normalised = by_group(column, uid, self._compare)
            total = [known + weight * value for known, value in zip(total, normalised, strict=True)]
        like = reward_components.new_zeros(action_mask.shape)
        advantages = masked_whiten(spread(total, like, action_mask), action_mask)
        return advantages, advantages.clone(), {}

    def _compare(self, rewards: Sequence[float]) -> list[float]:
        return grpo_advantages(rewards, self.epsilon, norm_adv_by_std_in_grpo=self.norm_adv_by_std_in_grpo)


def grpo_advantages(scores: Sequence[float], epsilon: float, *, norm_adv_by_std_in_grpo: bool = True) -> list[float]:
    """Return the normalised scores of one group."""
    mean = group_mean(scores)
    divisor = group_std(scores) + epsilon if norm_adv_by_std_in_grpo else 1.0
    return [(score - mean) / divisor for score in scores]
