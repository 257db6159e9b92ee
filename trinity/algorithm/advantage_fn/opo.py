"""OPO: on-policy RL with the optimal reward baseline.

    A_i = s_i - sum(L_j s_j) / sum(L_j)

L_j is the number of counted tokens of response j. The baseline has the least variance if all tokens have gradients of
equal size. A group of one has baseline 0. Source: Hao et al., arXiv:2505.23585v2, section 3.2.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage, scores_of, spread
from trinity.algorithm.statistics import rows_by_group


@ADVANTAGE_FN.register_module("verl_opo")
@ADVANTAGE_FN.register_module("opo")
class OPOAdvantage(TokenAdvantage):
    """Score minus the task's length-weighted mean. Names: `verl_opo`, `opo`."""

    summary = "score - length-weighted mean, in the trainer (arXiv:2505.23585v2, section 3.2)"
    formula = "R - sum(length R) / sum(length)\nlength: tokens of the rollout"

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
    ) -> Advantages:
        """Return the advantages, also as returns, one value per response.

        Tokens that are not counted get 0.
        """
        scores = scores_of(token_level_rewards, action_mask)
        lengths = action_mask.sum(-1).tolist()
        result = list(scores)
        for rows in rows_by_group(uid, len(scores)):
            baseline = _baseline([scores[row] for row in rows], [lengths[row] for row in rows])
            for row in rows:
                result[row] = scores[row] - baseline
        advantages = spread(result, token_level_rewards, action_mask)
        return advantages, advantages.clone(), {}


def _baseline(scores: Sequence[float], lengths: Sequence[int]) -> float:
    if len(scores) == 1 or sum(lengths) == 0:
        return 0.0
    if len(set(scores)) == 1:
        return scores[0]
    return sum(score * length for score, length in zip(scores, lengths, strict=True)) / sum(lengths)
