"""ReMax: reward to go minus the reward of a greedy rollout.

The greedy rollout answers the same prompt. Source: Li et al., arXiv:2310.10505v3, section 4.2.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage
from trinity.algorithm.statistics import masked_zero, reward_to_go


@ADVANTAGE_FN.register_module("remax")
@ADVANTAGE_FN.register_module("verl_remax")
class REMAXAdvantage(TokenAdvantage):
    """Undiscounted reward to go minus the baseline.

    Names: `remax`, `verl_remax`.
    """

    summary = "reward to go - reward of a greedy rollout, in the trainer (arXiv:2310.10505v3, section 4.2)"
    formula = "G - R(greedy rollout of the task)\nG = sum of the rewards from the token on"

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        reward_baselines: Float[Tensor, "B"],
    ) -> Advantages:
        """Return the advantages and the rewards to go.

        `reward_baselines` are the greedy rollouts' scores.
        """
        returns = reward_to_go(token_level_rewards, action_mask)
        return masked_zero(returns - reward_baselines.unsqueeze(-1), action_mask), returns, {}
