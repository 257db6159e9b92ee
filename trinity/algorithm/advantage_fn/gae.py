"""Generalised advantage estimation.

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lam A_{t+1},   return_t = A_t + V_t

with V and A 0 after the last token. The advantages are then whitened over the counted tokens of the batch, as in PPO.
Source: Schulman et al., arXiv:1506.02438v6, eq. 16.

Where we differ: the recursion skips tokens that the policy did not produce, so that neither their value nor a
step of gamma and lam counts; the paper has no such tokens, and trinity-rft 0.6.0 runs through them.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage
from trinity.algorithm.statistics import masked_whiten, masked_zero


@ADVANTAGE_FN.register_module("ppo")
@ADVANTAGE_FN.register_module("verl_gae")
@ADVANTAGE_FN.register_module("gae")
class GAEAdvantage(TokenAdvantage):
    """Whitened advantages and raw returns. Names: `ppo`, `verl_gae`, `gae`.

    The returns are computed before the whitening.

    Args:
        gamma: discount a token, in [0, 1].
        lam: lambda, in [0, 1]; 1 gives returns minus values, 0 gives one-step errors.

    Raises:
        ValueError: `gamma` or `lam` is outside [0, 1].
    """

    summary = "whitened GAE, in the trainer (arXiv:1506.02438v6, eq. 16)"
    formula = (
        "whiten(sum over k of ({gamma} {lam})^k delta(t + k))"
        "\ndelta(t) = reward(t) + {gamma} value(t + 1) - value(t)"
        "\nwhiten(x) = (x - mean) / sqrt(variance + 1e-8) over the tokens of the batch"
    )
    ranges = {"gamma": "[0, 1]", "lam": "[0, 1]"}

    def __init__(self, gamma: float = 1.0, lam: float = 1.0) -> None:
        if not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
            raise ValueError(f"gamma and lam must be in [0, 1], got {gamma} and {lam}")
        self.gamma = gamma
        self.lam = lam

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        values: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
    ) -> Advantages:
        """Return the advantages, the critic's targets and no metrics."""
        advantages = generalised_advantages(
            token_level_rewards, values, action_mask=action_mask, gamma=self.gamma, lam=self.lam
        )
        returns = masked_zero(advantages + values, action_mask)
        return masked_whiten(advantages, action_mask), returns, {}


def generalised_advantages(
    token_level_rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    *,
    action_mask: Bool[Tensor, "B T"],
    gamma: float,
    lam: float,
) -> Float[Tensor, "B T"]:
    """Return the advantages before whitening, 0 at the other tokens."""
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    following = torch.zeros_like(next_value)
    for step in reversed(range(values.shape[-1])):
        counted = action_mask[:, step]
        delta = token_level_rewards[:, step] + gamma * next_value - values[:, step]
        following = torch.where(counted, delta + gamma * lam * following, following)
        next_value = torch.where(counted, values[:, step], next_value)
        advantages[:, step] = following
    return masked_zero(advantages, action_mask)
