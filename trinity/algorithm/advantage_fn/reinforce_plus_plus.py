"""REINFORCE++ (Hu et al., arXiv:2501.03262v9).

    return_t = r_t + gamma return_{t+1}  (eq. 4),   A = whiten(return)  (eq. 5)

Other versions of the paper number the equations differently. The whitening is over the counted tokens of the whole
batch. With a baseline, the return is instead the score of the response minus the mean of its task (eq. 6 and 7).

Where we differ: only tokens that the policy produced discount; trinity-rft 0.6.0 discounts over the others too.

Dimension key: B = responses, T = response positions.
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
)
from trinity.algorithm.statistics import group_mean, masked_whiten, reward_to_go


@ADVANTAGE_FN.register_module("reinforceplusplus")
@ADVANTAGE_FN.register_module("verl_reinforce_plus_plus")
class REINFORCEPlusPlusAdvantage(TokenAdvantage):
    """Whitened rewards to go.

    Names: `reinforceplusplus`, `verl_reinforce_plus_plus`.

    Args:
        gamma: discount a token, in [0, 1].

    Raises:
        ValueError: `gamma` is outside [0, 1].
    """

    summary = "whitened reward to go, in the trainer (arXiv:2501.03262v9, eq. 4 and 5)"
    formula = (
        "whiten(G)"
        "\nG = sum of the rewards from the token on, discounted by {gamma} a token"
        "\nwhiten(x) = (x - mean) / sqrt(variance + 1e-8) over the tokens of the batch"
    )
    ranges = {"gamma": "[0, 1]"}

    def __init__(self, gamma: float = 1.0) -> None:
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        self.gamma = gamma

    def __call__(self, token_level_rewards: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]) -> Advantages:
        """Return the advantages, the raw returns and no metrics.

        The returns are computed before the whitening.
        """
        returns = reward_to_go(token_level_rewards, action_mask, self.gamma)
        return masked_whiten(returns, action_mask), returns, {}


@ADVANTAGE_FN.register_module("verl_reinforce_plus_plus_baseline")
@ADVANTAGE_FN.register_module("reinforce_plus_plus_baseline")
class REINFORCEPlusPlusBaselineAdvantage(GroupedTokenAdvantage):
    """Score minus the mean of the task, whitened over the batch.

    A group of one keeps its score.
    """

    summary = "whitened score - mean of the task, in the trainer (arXiv:2501.03262v9, eq. 6 and 7)"
    formula = "whiten(R - mean(R))\nwhiten(x) = (x - mean) / sqrt(variance + 1e-8) over the tokens of the batch"

    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return the scores minus their mean."""
        mean = group_mean(scores)
        return [score - mean for score in scores]

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
    ) -> Advantages:
        """Return the whitened numbers, as advantages and as returns."""
        centred, _, metrics = super().__call__(token_level_rewards, action_mask, uid)
        advantages = masked_whiten(centred, action_mask)
        return advantages, advantages.clone(), metrics
