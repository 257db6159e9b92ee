"""REINFORCE leave-one-out.

    A_i = r_i - mean of the others = (r_i - mean) n / (n - 1)

where n is the number of responses to the same prompt. Source: Ahmadian et al., arXiv:2402.14740v2, section 2.3; Kool et
al. 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import GroupedTokenAdvantage
from trinity.algorithm.statistics import group_mean


@ADVANTAGE_FN.register_module("rloo")
@ADVANTAGE_FN.register_module("verl_rloo")
class RLOOAdvantage(GroupedTokenAdvantage):
    """Score minus the other rollouts' mean. Names: `rloo`, `verl_rloo`.

    A group of one keeps its score.
    """

    summary = "score - mean of the task's other rollouts, in the trainer (arXiv:2402.14740v2, section 2.3)"
    formula = "R - mean(R of the other rollouts)\na task with one rollout keeps R"

    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return (score - mean) n / (n - 1)."""
        size, mean = len(scores), group_mean(scores)
        return [(score - mean) * size / max(size - 1, 1) for score in scores]


@ADVANTAGE_FN.register_module("verl_rloo_vectorized")
class RLOOVectorizedAdvantage(RLOOAdvantage):
    """As `rloo`, but a group of one gets 0.

    Without another rollout there is nothing to learn from.
    """

    summary = "as rloo; a group of one rollout gets 0"
    formula = "R - mean(R of the other rollouts)\na task with one rollout gets 0"

    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return (score - mean) n / (n - 1), or 0 for one."""
        return super().compare(scores) if len(scores) > 1 else [0.0]
