"""Asymmetric REINFORCE: the reward minus a shifted mean.

    A_i = r_i - (mean + baseline_shift)

Source: arXiv:2506.20520v2, eq. 4. With a negative shift good responses weigh more than bad ones, which keeps off-policy
learning stable; the paper suggests about -0.1 (section 5.3). A group of one has baseline 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.advantage_fn import RewardGroupAdvantage
from trinity.algorithm.advantage_fn.token_advantage import GroupedTokenAdvantage
from trinity.algorithm.statistics import group_mean


@ADVANTAGE_FN.register_module("asymre")
class ASYMREGroupAdvantage(RewardGroupAdvantage):
    """Reward minus the shifted mean, in the pipeline. Name: `asymre`.

    Args:
        baseline_shift: added to the mean, in units of the reward.
    """

    summary = "reward - (mean + shift) (arXiv:2506.20520v2, eq. 4)"
    formula = "R - (mean(R) + {baseline_shift})"

    def __init__(self, baseline_shift: float = -0.1) -> None:
        self.baseline_shift = baseline_shift

    def compare(self, rewards: Sequence[float]) -> list[float]:
        """Return the rewards minus the shifted mean."""
        return asymre_advantages(rewards, self.baseline_shift)


@ADVANTAGE_FN.register_module("asymre_verl")
class ASYMREAdvantage(GroupedTokenAdvantage):
    """Score minus the shifted mean, in the trainer. Name: `asymre_verl`.

    The arguments are those of `ASYMREGroupAdvantage`.
    """

    summary = "asymre, in the trainer"
    formula = ASYMREGroupAdvantage.formula

    def __init__(self, baseline_shift: float = -0.1) -> None:
        self.baseline_shift = baseline_shift

    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return the scores minus the shifted mean."""
        return asymre_advantages(scores, self.baseline_shift)


def asymre_advantages(rewards: Sequence[float], baseline_shift: float) -> list[float]:
    """Return the rewards of one group minus its shifted mean."""
    baseline = group_mean(rewards) + baseline_shift if len(rewards) > 1 else 0.0
    return [reward - baseline for reward in rewards]
