"""REINFORCE without a baseline (Williams 1992).

The advantage is the reward itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.advantage_fn import RewardGroupAdvantage


@ADVANTAGE_FN.register_module("reinforce")
class REINFORCEGroupAdvantage(RewardGroupAdvantage):
    """The reward, on every token that the policy produced.

    Rollouts are not compared.
    """

    summary = "the reward"
    formula = "R"
    compares_rollouts = False

    def compare(self, rewards: Sequence[float]) -> list[float]:
        """Return the rewards."""
        return list(rewards)
