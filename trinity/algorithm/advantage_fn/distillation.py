"""Advantages of distillation, from the teacher's log-probabilities.

They measure how much more the teacher likes the sampled token than the policy does.

    on_policy_distill   A = kl_coef (t - s)
    jsd                 A = -kl_coef J,   m = ln(beta e^t + (1 - beta) e^s), and
                        J = beta (t - m) + (1 - beta) (s - m)     estimator value
                        J = (1 - beta) (s - m)                    estimator gradient

s and t are the log-probabilities of the sampled token under the policy and the teacher, beta is `lambda_coef`. The
first is minus the per-token k1 estimate of the reverse divergence (Agarwal et al., arXiv:2306.13649). With beta 0,
where both formulas for J would give 0, J is s - t.

The generalised Jensen-Shannon divergence of that paper (v3, eq. 1) is
D = beta sum_y T (t - m) + (1 - beta) sum_y S (s - m) over the tokens y of the vocabulary, S = e^s and T = e^t. Its
derivative by S(y) is (1 - beta) (s - m): the other terms cancel, because e^m = beta T + (1 - beta) S. So the policy
gradient of `gradient` is that of D. The published J, `value`, sums the two parts of D at a token that the policy
sampled. It is no derivative of D: with beta 1/2 it is never positive, by the inequality of the arithmetic and geometric
mean, and 0 where policy and teacher agree, so that A rewards disagreement. `gradient` is the default of the algorithm
type `jsd`.

Where we differ: with beta 1, trinity-rft 0.6.0 takes J = t - s, which pushes away from the teacher; beta 1
is refused here.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.token_advantage import Advantages, TokenAdvantage
from trinity.algorithm.statistics import masked_zero
from trinity.algorithm.utils import masked_mean


@ADVANTAGE_FN.register_module("on_policy_distill")
class OnPolicyDistillAdvantage(TokenAdvantage):
    """`kl_coef` times (teacher minus policy).

    Args:
        kl_coef: coefficient.
    """

    summary = "teacher - policy log-probability, in the trainer (arXiv:2306.13649)"
    formula = "{kl_coef} (teacher_logprob - old_logprob)"

    def __init__(self, kl_coef: float = 1.0) -> None:
        self.kl_coef = kl_coef

    def __call__(
        self,
        old_logprob: Float[Tensor, "B T"],
        teacher_logprobs: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
    ) -> Advantages:
        """Return the advantages, also as returns, and a metric.

        The metric is `teacher_kl` (nats per token).
        """
        difference = masked_zero(teacher_logprobs - old_logprob, action_mask)
        advantages = self.kl_coef * difference
        return advantages, advantages.clone(), {"teacher_kl": -masked_mean(difference, action_mask).item()}


@ADVANTAGE_FN.register_module("jsd")
class JSDAdvantage(TokenAdvantage):
    """Minus `kl_coef` times the Jensen-Shannon estimate of the token.

    Args:
        lambda_coef: beta, in [0, 1); weight of the teacher in the mixture.
        kl_coef: coefficient.
        temperature: divides both log-probabilities, > 0.
        chunk_size: responses computed at a time; None takes all. It bounds memory and changes no number.
        estimator: `value` takes the published estimate of the divergence at the token, `gradient` the term whose
            policy gradient is that of the divergence.

    Raises:
        ValueError: an argument is outside its range.
    """

    summary = "minus the Jensen-Shannon estimate of the token, in the trainer (arXiv:2306.13649v3, eq. 1)"
    formula = (
        "-{kl_coef} J"
        "\n?estimator=gradient J = (1 - {lambda_coef}) (s - m), the policy gradient of the divergence"
        "\n?estimator=value J = {lambda_coef} (t - m) + (1 - {lambda_coef}) (s - m), its estimate at the token"
        "\nm = ln({lambda_coef} e^t + (1 - {lambda_coef}) e^s)"
        "\ns = old_logprob / {temperature}, t = teacher_logprob / {temperature}"
        "\n?lambda_coef=0 J is s - t"
    )
    ranges = {
        "lambda_coef": "[0, 1)",
        "temperature": "(0, inf]",
        "chunk_size": "[1, inf]",
        "estimator": ("value", "gradient"),
    }

    def __init__(
        self,
        lambda_coef: float = 0.5,
        kl_coef: float = 1.0,
        temperature: float = 1.0,
        chunk_size: int | None = None,
        estimator: str = "value",
    ) -> None:
        if not 0.0 <= lambda_coef < 1.0:
            raise ValueError(f"lambda_coef must be in [0, 1), got {lambda_coef}: 1 would push away from the teacher")
        if temperature <= 0 or (chunk_size is not None and chunk_size < 1):
            raise ValueError(f"temperature must be > 0 and chunk_size >= 1, got {temperature} and {chunk_size}")
        if estimator not in ("value", "gradient"):
            raise ValueError(f"estimator must be value or gradient, got {estimator!r}")
        self.estimator = estimator
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
        """Return the advantages, also as returns, and a metric.

        The metric is `teacher_jsd` (nats per token).
        """
        rows = self.chunk_size or max(len(old_logprob), 1)
        chunks = zip(old_logprob.split(rows), teacher_logprobs.split(rows), strict=True)
        parts = [self._parts(s, t) for s, t in chunks]
        of_teacher, of_policy = (masked_zero(torch.cat(part), action_mask) for part in zip(*parts, strict=True))
        divergence = of_teacher + of_policy
        advantages = -self.kl_coef * (of_policy if self.estimator == "gradient" else divergence)
        return advantages, advantages.clone(), {"teacher_jsd": masked_mean(divergence, action_mask).item()}

    def _parts(self, old_logprob: Tensor, teacher_logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Return beta (t - m) and (1 - beta) (s - m)."""
        policy, teacher, beta = old_logprob / self.temperature, teacher_logprobs / self.temperature, self.lambda_coef
        if beta == 0.0:
            return torch.zeros_like(policy), policy - teacher
        mixture = torch.logaddexp(policy + math.log1p(-beta), teacher + math.log(beta))
        return beta * (teacher - mixture), (1.0 - beta) * (policy - mixture)
