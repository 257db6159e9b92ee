"""Optimal token baseline, as in verl 0.9.1: one baseline per position.

Each response is weighted by how much its gradient varies.

    w_t = (1 - 2 pi_t + sum_v pi(v)^2) rho_t^2,   W_t = sum of w up to t,   G_t = reward to go
    B_t = sum over the task (G W) / (sum over the task (W) + 1e-8),   A_t = G_t - B_t

pi_t is the probability of the sampled token, rho_t the rollout importance weight (1 if not given); W approximates the
squared norm of the gradient of the response's log-probability up to t. A group of one has no baseline (0), nor has the
part of the longest response beyond the second longest. `tir` (tool-integrated reasoning) counts positions by the tokens
that the policy produced, so that tool output does not shift them.

Dimension key: B = responses, T = response positions, N = responses of one task.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage
from trinity.algorithm.statistics import masked_zero, reward_to_go, rows_by_group

EPSILON = 1e-8


@ADVANTAGE_FN.register_module("verl_optimal_token_baseline")
@ADVANTAGE_FN.register_module("optimal_token_baseline")
class OptimalTokenBaselineAdvantage(TokenAdvantage):
    """Reward to go minus the optimal baseline of its position.

    Positions are those in the padded response.
    """

    summary = "reward to go - optimal baseline of the position, in the trainer"
    formula = (
        "G - b"
        "\nG = sum of the rewards from the token on"
        "\nb = sum(G W) / sum(W) over the rollouts of the task, at the same position"
        "\nW = sum up to the token of 1 - 2 p + sum over the vocabulary of p^2, p = exp(old_logprob)"
    )

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
        old_logprob: Float[Tensor, "B T"],
        sum_pi_squared: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
    ) -> Advantages:
        """Return the advantages and the rewards to go."""
        returns = reward_to_go(token_level_rewards, action_mask)
        weights = path_weights(old_logprob, sum_pi_squared, action_mask, rollout_is_weights=rollout_is_weights)
        baselines = self.baselines(returns, weights, action_mask, uid)
        return masked_zero(returns - baselines, action_mask), returns, {}

    def baselines(
        self,
        returns: Float[Tensor, "B T"],
        weights: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
    ) -> Float[Tensor, "B T"]:
        """Return the baseline of every token."""
        result = torch.zeros_like(returns)
        for rows in (group for group in rows_by_group(uid, len(returns)) if len(group) > 1):
            result[rows] = group_baselines(returns[rows], weights[rows], action_mask[rows])
        return result


@ADVANTAGE_FN.register_module("verl_tir_optimal_token_baseline")
@ADVANTAGE_FN.register_module("tir_optimal_token_baseline")
class TIROptimalTokenBaselineAdvantage(OptimalTokenBaselineAdvantage):
    """`OptimalTokenBaselineAdvantage` on the policy's own token positions.

    Positions are counted over the tokens that the policy produced.
    """

    summary = "as optimal_token_baseline, positions counted without tool output"
    formula = (
        "G - b"
        "\nG = sum of the rewards from the token on"
        "\nb = sum(G W) / sum(W) over the rollouts of the task, at the same position"
        "\nW = sum up to the token of 1 - 2 p + sum over the vocabulary of p^2, p = exp(old_logprob)"
        "\npositions are counted over the tokens that the policy produced"
    )

    def baselines(
        self,
        returns: Float[Tensor, "B T"],
        weights: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
    ) -> Float[Tensor, "B T"]:
        """Return the baseline of every token."""
        order = torch.argsort((~action_mask).long(), dim=-1, stable=True)
        packed = super().baselines(
            returns.gather(-1, order), weights.gather(-1, order), action_mask.gather(-1, order), uid
        )
        return torch.zeros_like(packed).scatter(-1, order, packed)


def path_weights(
    old_logprob: Float[Tensor, "B T"],
    sum_pi_squared: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    rollout_is_weights: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Return W, 0 where nothing is counted."""
    step = 1.0 - 2.0 * old_logprob.exp() + sum_pi_squared
    if rollout_is_weights is not None:
        step = step * rollout_is_weights.square()
    return masked_zero(masked_zero(step, action_mask).cumsum(-1), action_mask)


def group_baselines(
    returns: Float[Tensor, "N T"], weights: Float[Tensor, "N T"], action_mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """Return the baselines of one task of two or more responses.

    `returns` and `weights` are 0 at other tokens.
    """
    shared = (returns * weights).sum(0) / (weights.sum(0) + EPSILON)
    baselines = shared.unsqueeze(0).repeat(len(returns), 1)
    lengths = action_mask.sum(-1)
    second, longest = (int(length) for length in lengths.sort().values[-2:])
    if longest > second:
        baselines[int(lengths.argmax()), second:] = 0.0
    return baselines
