"""The divergence of the policy from the reference over the whole vocabulary, in pieces, with its gradient.

Dimension key: M = scored tokens, d = hidden size, V = vocabulary. For p = softmax(z) and the reference's q,
KL = sum of p (ln p - ln q), and its derivative by z_j is p_j (ln p_j - ln q_j - KL).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.trainer.verl.logprob import chunk_rows, log_softmax
from trinity.utils.products import matmul


@dataclass(frozen=True)
class Output:
    """What gives the logits of a model: hidden states and the output layer in their number type.

    Attributes:
        hidden: last hidden states of the scored positions.
        weight: output layer.
        bias: of the output layer, if it has one.
    """

    hidden: Float[Tensor, "M d"]
    weight: Float[Tensor, "V d"]
    bias: Float[Tensor, "V"] | None


class _ChunkedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        parameter: Tensor,
        reference: Output,
        temperature: float,
    ) -> Tensor:
        rows = chunk_rows(weight.shape[0], hidden.device)
        divergence = hidden.new_empty(len(hidden), dtype=torch.float32)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logp, difference = _compared(hidden, weight, bias, reference, temperature, part)
            divergence[part] = (logp.exp() * difference).sum(1)
        ctx.save_for_backward(hidden, weight, divergence, *(() if bias is None else (bias,)))
        ctx.reference, ctx.temperature, ctx.rows = reference, temperature, rows
        return divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, divergence, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            logp, difference = _compared(hidden, weight, bias, ctx.reference, ctx.temperature, part)
            of_logits = logp.exp() * (difference - divergence[part, None]) * grad[part, None]
            of_logits = of_logits.div_(ctx.temperature).to(weight.dtype)
            grad_hidden[part] = matmul(of_logits, weight)
            grad_weight += matmul(of_logits.t(), hidden[part])
            if grad_bias is not None:
                grad_bias += of_logits.float().sum(0)
        return grad_hidden, None, grad_bias, grad_weight, None, None


def _compared(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, reference: Output, temperature: float, part: slice
) -> tuple[Tensor, Tensor]:
    """Return ln p and ln p - ln q of a piece."""
    logp = log_softmax(hidden[part], weight, bias, temperature)
    return logp, logp - log_softmax(reference.hidden[part], reference.weight, reference.bias, temperature)


def full_divergence(
    policy: Output, reference: Output, *, parameter: Float[Tensor, "V d"], temperature: float = 1.0
) -> Float[Tensor, "M"]:
    """Return KL(policy, reference) in nats at each scored token, in float32; the logits never exist at once.

    Args:
        policy: gets the gradient.
        reference: held.
        parameter: the float32 parameter that `policy.weight` is a copy of; it gets the gradient.
        temperature: divides both logits.
    """
    return _ChunkedDivergence.apply(policy.hidden, policy.weight, policy.bias, parameter, reference, temperature)
