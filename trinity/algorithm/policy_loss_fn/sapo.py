"""Soft adaptive policy optimisation, by Trinity's and veRL's convention.

The paper's objective (arXiv:2511.20347v2, eq. 5) is differentiated through the gate: its gradient, eq. 7 and 8, weights
that of the log-probability by 4 sigmoid(x) (1 - sigmoid(x)) r with x = tau (r - 1), which is 1 at the old policy and
falls on both sides. veRL does the same. With the gate as a constant (`is_gate_held`) the weight is 2 / tau at the old
policy and rises towards 4 / tau as r grows, so that the gate never closes there.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.log_ratio import is_beyond
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.ratio import clamped_log_ratio
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("sapo")
class SAPOPolicyLossFn(TokenLossFn):
    """A policy loss with a gate that closes smoothly where PPO clips.

        -A sigmoid(tau (r - 1)) 4 / tau,   r = exp(logprob - old_logprob), the difference clamped to +-20

    arXiv:2511.20347v2, eq. 5 and 6. tau is `tau_pos` for A > 0, else `tau_neg`. The gradient goes through the ratio, as
    in the paper and in veRL; `is_gate_held` is the loss of trinity-rft 0.6.0, -A [gate 4 / tau] logprob, with the value
    in brackets as a constant. The paper's mean is that of the responses' means (`seq-mean-token-mean`).

    Args:
        backend: see `PolicyLossFn`.
        tau_pos: temperature of the gate where the advantage is positive, > 0.
        tau_neg: temperature elsewhere, > 0; larger closes the gate sooner.
        loss_agg_mode: see `aggregate_loss`.
        is_gate_held: take the gate as a constant weight of the log-probability, as trinity-rft does.

    Raises:
        ValueError: a temperature that is not positive.
    """

    summary = "a smooth gate instead of the clip (arXiv:2511.20347v2, eq. 5 and 6)"
    formula = (
        "-A sigmoid(tau (r - 1)) 4 / tau\nr = exp(logprob - old_logprob)\ntau = {tau_pos} where A > 0, else {tau_neg}"
        "\n?is_gate_held the factors of A are a constant, times logprob"
    )
    ranges = {"tau_pos": "(0, inf]", "tau_neg": "(0, inf]"}
    zero_advantage_is_zero_loss = True

    def __init__(
        self,
        backend: str = "verl",
        tau_pos: float = 1.0,
        tau_neg: float = 1.05,
        loss_agg_mode: str = "token-mean",
        is_gate_held: bool = False,
    ) -> None:
        super().__init__(backend, loss_agg_mode)
        if tau_pos <= 0 or tau_neg <= 0:
            raise ValueError(f"tau_pos and tau_neg must be > 0, got {tau_pos} and {tau_neg}")
        self.tau_pos = tau_pos
        self.tau_neg = tau_neg
        self.is_gate_held = is_gate_held

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `pg_loss`, `ppo_kl` and `gate/mean`.

        `gate/mean` is twice the mean sigmoid, so that it is 1 at the old policy.
        """
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = clamped_log_ratio(logprob, old_logprob)
        is_positive = advantages > 0
        tau = torch.full_like(logprob, self.tau_neg, requires_grad=False).masked_fill(is_positive, self.tau_pos)
        gate = torch.sigmoid(tau * (log_ratio.exp() - 1.0))
        if self.is_gate_held:
            terms = -advantages * (gate.detach() * 4.0 / tau) * logprob
        else:
            terms = -advantages * gate * 4.0 / tau
        beyond = is_beyond(logprob - old_logprob)
        note_clipping(log_ratio.exp(), clipped=torch.zeros_like(beyond) if self.is_gate_held else beyond)
        loss = self.aggregate(terms, action_mask, rollout_is_weights)
        metrics = {
            "pg_loss": loss.item(),
            "ppo_kl": masked_mean(-log_ratio.detach(), action_mask).item(),
            "gate/mean": masked_mean(2.0 * gate.detach(), action_mask).item(),
        }
        return loss, metrics


@POLICY_LOSS_FN.register_module("verl_sapo")
class VerlSAPOPolicyLossFn(SAPOPolicyLossFn):
    """Soft adaptive policy optimisation with veRL's aggregation.

    This is always seq-mean-token-mean.

    Args:
        backend: see `PolicyLossFn`.
        tau_pos: see `SAPOPolicyLossFn`.
        tau_neg: see `SAPOPolicyLossFn`.

    Raises:
        ValueError: a temperature that is not positive.
    """

    summary = "as sapo, always seq-mean-token-mean"
    formula = (
        "= mean over the responses of their means over the tokens of -A sigmoid(tau (r - 1)) 4 / tau"
        "\nr = exp(logprob - old_logprob)"
        "\ntau = {tau_pos} where A > 0, else {tau_neg}"
    )
    convention = "verl"

    def __init__(self, backend: str = "verl", tau_pos: float = 1.0, tau_neg: float = 1.05) -> None:
        super().__init__(backend, tau_pos, tau_neg, "seq-mean-token-mean")
