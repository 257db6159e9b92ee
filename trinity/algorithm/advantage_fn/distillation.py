"""Advantages of distillation: how much more the teacher likes the sampled token than the policy does.

    on_policy_distill   A = kl_coef (t - s)
    jsd                 A = -kl_coef J,   J = beta (t - m) + (1 - beta) (s - m),   m = ln(beta e^t + (1 - beta) e^s)

s and t are the log-probabilities of the sampled token under the policy and the teacher, beta is `lambda_coef`. The
first is minus the per-token k1 estimate of the reverse divergence (Agarwal et al., arXiv:2306.13649). J is a per-token
estimate on sampled tokens of the generalised Jensen-Shannon divergence of that paper, section 2; beta 0 gives s - t.

Where we differ: with beta 1, trinity-rft 0.6.0 takes J = t - s, which pushes away from the teacher; it is refused here.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage
from trinity.algorithm.statistics import masked_zero
from trinity.algorithm.utils import masked_mean


class OnPolicyDistillAdvantage(TokenAdvantage):
    """`kl_coef` times (teacher minus policy).

    Args:
        kl_coef: coefficient.
    """

    def __init__(self, kl_coef: float = 1.0) -> None:
        self.kl_coef = kl_coef

    def __call__(
        self,
        old_logprob: Float[Tensor, "B T"],
        teacher_logprobs: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
    ) -> Advantages:
        """Return the advantages, also as returns, and the metric `teacher_kl` (nats a token)."""
        difference = masked_zero(teacher_logprobs - old_logprob, action_mask)
        advantages = self.kl_coef * difference
        return advantages, advantages.clone(), {"teacher_kl": -masked_mean(difference, action_mask).item()}


class JSDAdvantage(TokenAdvantage):
    """Minus `kl_coef` times the Jensen-Shannon estimate of the token.

    Args:
        lambda_coef: beta, in [0, 1); weight of the teacher in the mixture.
        kl_coef: coefficient.
        temperature: divides both log-probabilities, > 0.
        chunk_size: responses computed at a time; None takes all. It bounds memory and changes no number.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        lambda_coef: float = 0.5,
        kl_coef: float = 1.0,
        temperature: float = 1.0,
        chunk_size: int | None = None,
    ) -> None:
        if not 0.0 <= lambda_coef < 1.0:
            raise ValueError(f"lambda_coef must be in [0, 1), got {lambda_coef}: 1 would push away from the teacher")
        if temperature <= 0 or (chunk_size is not None and chunk_size < 1):
            raise ValueError(f"temperature must be > 0 and chunk_size >= 1, got {temperature} and {chunk_size}")
        self.lambda_coef = lambda_coef
        self.kl_coef = kl_coef
        self.temperature = temperature
        self.chunk_size = chunk_size

    def __call__(
        self,
        old_logprob: Float[Tensor, "B T"],
        teacher_logprobs: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
    ) -> Advantages:
        """Return the advantages, also as returns, and the metric `teacher_jsd` (nats a token)."""
        rows = self.chunk_size or max(len(old_logprob), 1)
        chunks = zip(old_logprob.split(rows), teacher_logprobs.split(rows), strict=True)
        divergence = masked_zero(torch.cat([self._divergence(s, t) for s, t in chunks]), action_mask)
        advantages = -self.kl_coef * divergence
        return advantages, advantages.clone(), {"teacher_jsd": masked_mean(divergence, action_mask).item()}

    def _divergence(self, old_logprob: Tensor, teacher_logprobs: Tensor) -> Tensor:
        policy, teacher, beta = old_logprob / self.temperature, teacher_logprobs / self.temperature, self.lambda_coef
        if beta == 0.0:
            return policy - teacher
        mixture = torch.logaddexp(policy + math.log1p(-beta), teacher + math.log(beta))
        return beta * (teacher - mixture) + (1.0 - beta) * (policy - mixture)
