"""Covariance between advantage and log-probability, per token.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.aggregation import masked_mean


def token_covariance(
    advantages: Float[Tensor, "B T"], logprob: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return each token's share of the covariance, without gradient.

        (A - mean A) (logprob - mean logprob)        arXiv:2505.22617v1, eq. 10

    The means are those of the counted tokens given. Tokens of high covariance are those whose reinforcement lowers the
    policy's entropy most.
    """
    held, weights = logprob.detach(), advantages.detach()
    return (weights - masked_mean(weights, action_mask)) * (held - masked_mean(held, action_mask))
