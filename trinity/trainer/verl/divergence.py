"""The divergence from the reference over the whole vocabulary, in chunks.

    KL = sum of p (ln p - ln q),    d KL / d z_j = p_j (ln p_j - ln q_j - KL)

with p = softmax(z) of the policy and q of the reference.

Dimension key: M = scored tokens, d = hidden size, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.trainer.verl.logprob import LayerGradients, chunk_rows
from trinity.trainer.verl.output_layer import OutputLayer


@dataclass(frozen=True)
class Output:
    """The hidden states and output layer that give a model's logits.

    Attributes:
        hidden: last hidden states of the scored positions.
        layer: output layer in their data type.
    """

    hidden: Float[Tensor, "M d"]
    layer: OutputLayer


class _ChunkedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "M d"],
        bias: Float[Tensor, "V"] | None,
        parameter: Float[Tensor, "V d"],
        layer: OutputLayer,
        reference: Output,
        temperature: float,
    ) -> Float[Tensor, "M"]:
        rows = chunk_rows(layer.num_tokens, hidden.device)
        divergence = hidden.new_empty(len(hidden), dtype=torch.float32)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logp = layer.log_softmax(hidden[part], temperature)
            divergence[part] = (logp.exp() * _difference(logp, reference, temperature, part)).sum(1)
        ctx.save_for_backward(hidden, divergence)
        ctx.layer, ctx.reference, ctx.temperature, ctx.rows = layer, reference, temperature, rows
        return divergence

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "M"]
    ) -> tuple[Float[Tensor, "M d"], Float[Tensor, "V"] | None, Float[Tensor, "V d"] | None, None, None, None]:
        hidden, divergence = ctx.saved_tensors
        sums = LayerGradients(ctx.layer, hidden, of_bias=ctx.needs_input_grad[1], of_weight=ctx.needs_input_grad[2])
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            logits = ctx.layer.logits(hidden[part])
            logp = torch.log_softmax(logits / ctx.temperature, 1)
            difference = _difference(logp, ctx.reference, ctx.temperature, part)
            of_logits = logp.exp() * (difference - divergence[part, None]) * grad[part, None]
            sums.add(part, of_logits.div_(ctx.temperature), logits)
        return sums.hidden, sums.bias, sums.weight, None, None, None


def _difference(logp: Tensor, reference: Output, temperature: float, part: slice) -> Tensor:
    """Return ln p - ln q [m, V] of a chunk."""
    return logp - reference.layer.log_softmax(reference.hidden[part], temperature)


def full_divergence(policy: Output, reference: Output, *, temperature: float = 1.0) -> Float[Tensor, "M"]:
    """Return KL(policy, reference) (nats, float32) at each scored token.

    The logits of all tokens never exist at once.

    Args:
        policy: its hidden states, and the parameters of its layer, get the gradient.
        reference: gets no gradient.
        temperature: divides both logits.
    """
    layer = policy.layer
    return _ChunkedDivergence.apply(policy.hidden, layer.bias, layer.parameter, layer, reference, temperature)
