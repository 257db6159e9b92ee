"""GPG: group policy gradient (arXiv:2504.02546v4, eq. 6 and 7).

    A_i = alpha (s_i - mean),   alpha = responses / responses with a nonzero score

alpha compensates for responses that carry no signal. A group of one has mean 0.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage, by_group, scores_of, spread
from trinity.algorithm.statistics import group_mean


@ADVANTAGE_FN.register_module("verl_gpg")
@ADVANTAGE_FN.register_module("gpg")
class GPGAdvantage(TokenAdvantage):
    """Score minus the task's mean, times alpha. Names: `verl_gpg`, `gpg`.

    alpha is that of the batch.
    """

    summary = "score - mean, scaled up for groups without signal, in the trainer (arXiv:2504.02546v4, eq. 6 and 7)"
    formula = "alpha (R - mean(R))\nalpha = rollouts of the batch / those whose reward is not 0"

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
    ) -> Advantages:
        """Return the advantages, also as returns, and the metric `gpg_alpha`.

        All counted tokens of a response have one value.
        """
        scores = scores_of(token_level_rewards, action_mask)
        alpha = len(scores) / max(sum(score != 0 for score in scores), 1)
        result = [alpha * value for value in by_group(scores, uid, _centred)]
        advantages = spread(result, token_level_rewards, action_mask)
        return advantages, advantages.clone(), {"gpg_alpha": alpha}


def _centred(scores: Sequence[float]) -> list[float]:
    mean = group_mean(scores)
    return [score - mean for score in scores]
