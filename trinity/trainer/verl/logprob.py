"""Log-probabilities and entropy from hidden states, in pieces: the logits of a batch never exist at once.

Dimension key: M = scored tokens, d = hidden size, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.utils.products import matmul

# What an advantage may ask for beside the log-probability, from the log-probabilities [M V] of the vocabulary.
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum_pi_squared": lambda logp: (2.0 * logp).exp().sum(1),
    "entropys": lambda logp: -(logp.exp() * logp).sum(1),
}
CHUNK_BYTES = {"cpu": 32 * 2**20, "cuda": 512 * 2**20}


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Return how many rows of float32 logits one piece holds."""
    return max(1, CHUNK_BYTES.get(device.type, CHUNK_BYTES["cuda"]) // (4 * vocabulary))


class _ChunkedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        parameter: Tensor,
        labels: Tensor,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        rows = chunk_rows(weight.shape[0], hidden.device)
        logprob = hidden.new_empty(len(labels), dtype=torch.float32)
        entropy = torch.zeros_like(logprob)
        kept = None
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            logp = log_softmax(hidden[part], weight, bias, temperature)
            logprob[part] = logp.gather(1, labels[part, None]).squeeze(1)
            if with_entropy:
                entropy[part] = -(logp.exp() * logp).sum(1)
            kept = logp if len(labels) <= rows else None
        ctx.save_for_backward(hidden, weight, labels, entropy, *(t for t in (bias, kept) if t is not None))
        ctx.has = (bias is not None, kept is not None)
        ctx.temperature, ctx.with_entropy, ctx.rows = temperature, with_entropy, rows
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprob: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, labels, entropy, *rest = ctx.saved_tensors
        bias = rest.pop(0) if ctx.has[0] else None
        kept = rest.pop(0) if ctx.has[1] else None
        grad_hidden = torch.empty_like(hidden)
        of_bias, of_weight = ctx.needs_input_grad[2:4]  # both are frozen where only an adapter is trained
        shape = {"dtype": torch.float32, "device": weight.device}
        grad_weight = torch.zeros(weight.shape, **shape) if of_weight else None
        grad_bias = torch.zeros(bias.shape, **shape) if bias is not None and of_bias else None
        for start in range(0, len(labels), ctx.rows):
            part = slice(start, start + ctx.rows)
            logp = log_softmax(hidden[part], weight, bias, ctx.temperature) if kept is None else kept
            of_entropy = (grad_entropy[part], entropy[part]) if ctx.with_entropy else None
            grad = _grad_logits(logp, labels[part], grad_logprob[part], of_entropy)
            grad = grad.div_(ctx.temperature).to(weight.dtype)
            grad_hidden[part] = matmul(grad, weight)
            if grad_weight is not None:
                grad_weight += matmul(grad.t(), hidden[part])
            if grad_bias is not None:
                grad_bias += grad.float().sum(0)
        return grad_hidden, None, grad_bias, grad_weight, None, None, None


def log_softmax(
    hidden: Float[Tensor, "M d"], weight: Float[Tensor, "V d"], bias: Float[Tensor, "V"] | None, temperature: float
) -> Float[Tensor, "M V"]:
    """Return the log-probabilities (nats, float32) of the vocabulary; `temperature` divides the logits."""
    logits = matmul(hidden, weight.t()).float()
    if bias is not None:
        logits += bias
    return torch.log_softmax(logits if temperature == 1.0 else logits.div_(temperature), 1)


def _grad_logits(logp: Tensor, labels: Tensor, grad_logprob: Tensor, entropy: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return d / d logits: g (onehot - p), and for the entropy H: -h p (log p + H)."""
    probability = logp.exp()
    grad = probability * -grad_logprob[:, None]
    if entropy is not None:
        grad_entropy, value = entropy
        grad.addcmul_(probability * (logp + value[:, None]), grad_entropy[:, None], value=-1.0)
    return grad.scatter_add_(1, labels[:, None], grad_logprob[:, None])


def logprob_and_entropy(
    hidden: Float[Tensor, "M d"],
    weight: Float[Tensor, "V d"],
    labels: Int[Tensor, "M"],
    *,
    parameter: Float[Tensor, "V d"],
    bias: Float[Tensor, "V"] | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
    """Return the log-probability (nats) of each label and the entropy (nats) of its distribution, in float32.

    Args:
        hidden: last hidden states.
        weight: output layer in the number type of `hidden`.
        labels: scored tokens.
        parameter: the float32 parameter that `weight` is a copy of; it gets the gradient.
        bias: of the output layer, float32.
        temperature: divides the logits.
        with_entropy: compute the entropy; zeros otherwise.
    """
    return _ChunkedLogprob.apply(hidden, weight, bias, parameter, labels, temperature, with_entropy)


@torch.no_grad()
def distribution_statistics(
    hidden: Float[Tensor, "M d"],
    weight: Float[Tensor, "V d"],
    names: Iterable[str],
    *,
    bias: Float[Tensor, "V"] | None = None,
    temperature: float = 1.0,
) -> dict[str, Float[Tensor, "M"]]:
    """Return `STATISTICS` of the distribution that each hidden state predicts, in float32 and without a gradient."""
    result = {name: hidden.new_empty(len(hidden), dtype=torch.float32) for name in names}
    rows = chunk_rows(weight.shape[0], hidden.device)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        logp = log_softmax(hidden[part], weight, bias, temperature)
        for name, values in result.items():
            values[part] = STATISTICS[name](logp)
    return result
