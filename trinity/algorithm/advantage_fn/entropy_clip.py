"""GRPO without the tokens that change the entropy most.

    S_t = p_t (H_t + ln p_t)              how an update of the sampled token changes the entropy, to first order
    E_t = sum over v of p(v)^2 (H_t + ln p(v))     the mean of S_t over what the policy could have sampled

Clip-B compares S with its mean over the batch, Clip-V with E_t (arXiv:2602.03392). p and H are those of the policy
before the step. Where we differ from Trinity-RFT: there p is the rollout's probability, and a clipped token leaves the
mask of the loss; here its advantage is 0, so that it still counts in the mean and in KL terms.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.grpo_tokens import GRPOAdvantage
from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage
from trinity.algorithm.statistics import masked_zero


@ADVANTAGE_FN.register_module("clipb")
class ClipBAdvantage(TokenAdvantage):
    """`grpo_verl` without negative advantages of low S. Name: `clipb`.

    The advantage is 0 where it is negative and S is far below the mean of the batch.

    Args:
        epsilon: added to the standard deviation of the scores.
        mu: how many standard deviations S may lie below its mean before the token is clipped, > 0.

    Raises:
        ValueError: `mu` is not positive.
    """

    summary = "grpo_verl without the negative tokens that would change the entropy most (arXiv:2602.03392)"
    formula = (
        "G, and 0 where G < 0 and S < mean(S) - {mu} std(S), over the tokens of the batch"
        "\nG = (R - mean(R)) / (std(R) + {epsilon})"
        "\nS = p (H + ln p), p = exp(old_logprob), H the entropy of the policy before the step"
    )
    ranges = {"mu": "(0, inf]"}

    def __init__(self, epsilon: float = 1e-6, mu: float = 2.5) -> None:
        _check_positive("clipb", "mu", mu)
        self.grpo = GRPOAdvantage(epsilon)
        self.mu = mu

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
        old_logprob: Float[Tensor, "B T"],
        entropys: Float[Tensor, "B T"],
    ) -> Advantages:
        """Return the advantages, those of `grpo_verl` as returns, and a metric.

        The metric `clipped_frac` is the fraction of clipped tokens.
        """
        advantages, returns, metrics = self.grpo(token_level_rewards, action_mask, uid)
        change = _entropy_change(old_logprob, entropys)
        counted = change[action_mask]
        if counted.numel() < 2:
            return advantages, returns, metrics | {"clipped_frac": 0.0}
        is_far = change - counted.mean() < -self.mu * counted.std(correction=0)
        return _clipped(advantages, returns, action_mask & (advantages < 0) & is_far, action_mask)


@ADVANTAGE_FN.register_module("clipv")
class ClipVAdvantage(TokenAdvantage):
    """`grpo_verl` without advantages <= 0 of large E - S. Name: `clipv`.

    Few tokens are clipped.

    Args:
        epsilon: added to the standard deviation of the scores.
        mu: a token is clipped where E - S exceeds `mu` times the standard deviation of E - S, > 0.
        max_frac: largest share of the batch's tokens that is clipped, those of the largest E - S, in (0, 1].

    Raises:
        ValueError: `mu` is not positive or `max_frac` not in (0, 1].
    """

    summary = "as clipb, relative to the mean over the vocabulary (arXiv:2602.03392)"
    formula = (
        "G, and 0 where G <= 0 and E - S > {mu} std(E - S), over the tokens of the batch, for at most a share of "
        "{max_frac} of them"
        "\nG = (R - mean(R)) / (std(R) + {epsilon})"
        "\nS = p (H + ln p), p = exp(old_logprob), H the entropy of the policy before the step"
        "\nE = sum over the vocabulary of p^2 (H + ln p)"
    )
    ranges = {"mu": "(0, inf]", "max_frac": "(0, 1]"}

    def __init__(self, epsilon: float = 1e-6, mu: float = 8.5, max_frac: float = 1e-4) -> None:
        _check_positive("clipv", "mu", mu)
        if not 0 < max_frac <= 1:
            raise ValueError(f"clipv needs max_frac in (0, 1], got {max_frac}")
        self.grpo = GRPOAdvantage(epsilon)
        self.mu = mu
        self.max_frac = max_frac

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
        old_logprob: Float[Tensor, "B T"],
        entropys: Float[Tensor, "B T"],
        necs: Float[Tensor, "B T"],
    ) -> Advantages:
        """Return the advantages, those of `grpo_verl` as returns, and a metric.

        The metric `clipped_frac` is the fraction of clipped tokens.
        """
        advantages, returns, metrics = self.grpo(token_level_rewards, action_mask, uid)
        difference = necs - _entropy_change(old_logprob, entropys)
        counted = difference[action_mask]
        limit = int(self.max_frac * counted.numel())
        if counted.numel() < 2 or not limit:
            return advantages, returns, metrics | {"clipped_frac": 0.0}
        is_far = action_mask & (advantages <= 0) & (difference > self.mu * counted.std(correction=0))
        if int(is_far.sum()) > limit:
            # The order of equal differences is that of the batch, so that equal batches clip equal tokens.
            places = torch.where(is_far, difference, -torch.inf).flatten()
            first = torch.sort(places, descending=True, stable=True).indices[:limit]
            is_far = torch.zeros_like(places, dtype=torch.bool).index_fill(0, first, True).view_as(is_far)
        return _clipped(advantages, returns, is_far, action_mask)


def _entropy_change(logprob: Tensor, entropy: Tensor) -> Tensor:
    return logprob.exp() * (entropy + logprob)


def _clipped(advantages: Tensor, returns: Tensor, is_far: Tensor, mask: Tensor) -> Advantages:
    share = float(is_far.sum()) / max(int(mask.sum()), 1)
    return masked_zero(advantages, mask & ~is_far), returns, {"clipped_frac": share}


def _check_positive(name: str, argument: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} needs {argument} > 0, got {value}")
