"""Log-probabilities and entropy from hidden states, in chunks.

The logits of a batch never exist at once.

Dimension key: M = scored tokens, d = hidden size, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.trainer.verl.compiled_layers import NARROW, is_compiled
from trinity.trainer.verl.output_layer import PLAIN, OutputLayer
from trinity.utils.products import matmul, weight_gradient

# Statistics that an advantage may need, from the log-probabilities [M V] of the vocabulary.
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum_pi_squared": lambda logp: (2.0 * logp).exp().sum(1),
    "entropys": lambda logp: -(logp.exp() * logp).sum(1),
    "necs": lambda logp: ((2.0 * logp).exp() * (logp - (logp.exp() * logp).sum(1, keepdim=True))).sum(1),
}
CHUNK_BYTES = {"cpu": 32 * 2**20, "cuda": 512 * 2**20}


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Return how many rows of float32 logits one chunk holds."""
    return max(1, CHUNK_BYTES.get(device.type, CHUNK_BYTES["cuda"]) // (4 * vocabulary))


class _ChunkedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "M d"],
        bias: Float[Tensor, "V"] | None,
        parameter: Float[Tensor, "V d"],
        labels: Int[Tensor, "M"],
        layer: OutputLayer,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
        rows = chunk_rows(layer.num_tokens, hidden.device)
        logprob = hidden.new_empty(len(labels), dtype=torch.float32)
        entropy = torch.zeros_like(logprob)
        kept = None
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            logp = layer.log_softmax(hidden[part], temperature)
            logprob[part] = logp.gather(1, labels[part, None]).squeeze(1)
            if with_entropy:
                entropy[part] = -(logp.exp() * logp).sum(1)
            kept = logp if len(labels) <= rows and layer.rule.softcap is None else None
        ctx.save_for_backward(hidden, labels, entropy, *(() if kept is None else (kept,)))
        ctx.layer, ctx.temperature, ctx.with_entropy, ctx.rows = layer, temperature, with_entropy, rows
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprob: Float[Tensor, "M"], grad_entropy: Float[Tensor, "M"]
    ) -> tuple[Float[Tensor, "M d"], Float[Tensor, "V"] | None, Float[Tensor, "V d"] | None, None, None, None, None]:
        hidden, labels, entropy, *rest = ctx.saved_tensors
        layer: OutputLayer = ctx.layer
        sums = LayerGradients(layer, hidden, of_bias=ctx.needs_input_grad[1], of_weight=ctx.needs_input_grad[2])
        for start in range(0, len(labels), ctx.rows):
            part = slice(start, start + ctx.rows)
            logits = None if rest else layer.logits(hidden[part])
            logp = rest[0] if logits is None else torch.log_softmax(logits / ctx.temperature, 1)
            of_entropy = (grad_entropy[part], entropy[part]) if ctx.with_entropy else None
            grad = _grad_logits(logp, labels[part], grad_logprob[part], of_entropy)
            sums.add(part, grad.div_(ctx.temperature), logits)
        return sums.hidden, sums.bias, sums.weight, None, None, None, None


class LayerGradients:
    """Sums the gradients of an output layer over chunks of its input.

    Args:
        layer: the layer.
        inputs: its inputs [M, d].
        of_bias: whether the bias needs a gradient.
        of_weight: whether the weight does; both are frozen where only an adapter is trained.

    Attributes:
        hidden: gradient of `inputs`.
        weight: of the parameter, in float32, or None.
        bias: of the bias, or None.
    """

    def __init__(self, layer: OutputLayer, inputs: Tensor, *, of_bias: bool, of_weight: bool) -> None:
        bias, device = layer.bias, layer.weight.device
        self.layer, self.inputs = layer, inputs
        self.hidden = torch.empty_like(inputs)
        self.weight = torch.zeros(layer.weight.shape, dtype=torch.float32, device=device) if of_weight else None
        has_bias = bias is not None and of_bias
        self.bias = torch.zeros(layer.num_tokens, dtype=torch.float32, device=device) if has_bias else None

    def add(self, part: slice, grad: Float[Tensor, "m V"], logits: Float[Tensor, "m V"] | None) -> None:
        """Add the gradients of the inputs `part`.

        `grad` is the gradient with respect to their logits; it is overwritten.
        """
        products = self.layer.rule.backward(grad, logits)
        if self.bias is not None:
            self.bias += products.sum(0)
        self.add_products(part, products.to(self.layer.weight.dtype))

    def add_products(self, part: slice, grad: Float[Tensor, "m V"]) -> None:
        """Add the gradients of the inputs `part` and of the weight.

        `grad` is the gradient with respect to the products, in their data type.
        """
        self.hidden[part] = matmul(grad, self.layer.weight)
        if self.weight is not None:
            self.weight += weight_gradient(grad, self.inputs[part])


class _CompiledLogprob(torch.autograd.Function):
    """`_ChunkedLogprob` by compiled kernels, which keep only the products."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "M d"],
        parameter: Float[Tensor, "V d"],
        labels: Int[Tensor, "M"],
        layer: OutputLayer,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
        rows = chunk_rows(layer.num_tokens, hidden.device)
        logprob, lse = torch.empty(len(labels)), torch.empty(len(labels))
        entropy, products, labels = torch.zeros(len(labels)), hidden, labels.contiguous()
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            products = matmul(hidden[part], layer.weight.t())
            found = (logprob[part].data_ptr(), entropy[part].data_ptr() if with_entropy else 0, lse[part].data_ptr())
            _kernels().forward(
                products.data_ptr(), labels[part].data_ptr(), found, *products.shape, 1 / temperature, _like(products)
            )
        ctx.save_for_backward(hidden, labels, entropy, lse, *([products] if len(labels) <= rows else []))
        ctx.layer, ctx.temperature, ctx.with_entropy, ctx.rows = layer, temperature, with_entropy, rows
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprob: Float[Tensor, "M"], grad_entropy: Float[Tensor, "M"]
    ) -> tuple[Float[Tensor, "M d"], Float[Tensor, "V d"] | None, None, None, None, None]:
        hidden, labels, entropy, lse, *rest = ctx.saved_tensors
        layer: OutputLayer = ctx.layer
        sums = LayerGradients(layer, hidden, of_bias=False, of_weight=ctx.needs_input_grad[1])
        grad_logprob, grad_entropy = grad_logprob.contiguous(), grad_entropy.contiguous()
        for start in range(0, len(labels), ctx.rows):
            part = slice(start, start + ctx.rows)
            products = rest[0] if rest else matmul(hidden[part], layer.weight.t())
            grad = torch.empty_like(products)
            _kernels().backward(
                products.data_ptr(),
                labels[part].data_ptr(),
                (entropy[part].data_ptr(), lse[part].data_ptr()),
                (grad_logprob[part].data_ptr(), grad_entropy[part].data_ptr() if ctx.with_entropy else 0),
                grad.data_ptr(),
                *grad.shape,
                1 / ctx.temperature,
                _like(grad),
            )
            sums.add_products(part, grad)
        return sums.hidden, sums.weight, None, None, None, None


def _kernels() -> ModuleType:
    from trinity.utils.fused import logprobs  # with Numba, half a second of imports

    return logprobs


def _like(x: Tensor) -> Any:
    from trinity.utils.fused.machine import LIKE

    return LIKE[x.dtype]


def _grad_logits(logp: Tensor, labels: Tensor, grad_logprob: Tensor, entropy: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return g (onehot - p) - h p (log p + H), the gradient of logits [m, V]."""
    probability = logp.exp()
    grad = probability * -grad_logprob[:, None]
    if entropy is not None:
        grad_entropy, value = entropy
        grad.addcmul_(probability * (logp + value[:, None]), grad_entropy[:, None], value=-1.0)
    return grad.scatter_add_(1, labels[:, None], grad_logprob[:, None])


def logprob_and_entropy(
    hidden: Float[Tensor, "M d"],
    layer: OutputLayer,
    labels: Int[Tensor, "M"],
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
    """Return log-probability and entropy (nats, float32) of each label.

        z = logits / temperature,  p = softmax(z)
        logprob = log p[label],    entropy = -sum of p log p

    Args:
        hidden: last hidden states.
        layer: output layer in the data type of `hidden`; its parameter and its bias get the gradient.
        labels: scored tokens.
        temperature: divides the logits.
        with_entropy: compute the entropy; zeros otherwise.
    """
    if layer.bias is None and layer.rule == PLAIN and is_compiled(hidden, of_model=NARROW, dtype=layer.weight.dtype):
        return _CompiledLogprob.apply(hidden, layer.parameter, labels, layer, temperature, with_entropy)
    return _ChunkedLogprob.apply(hidden, layer.bias, layer.parameter, labels, layer, temperature, with_entropy)


@torch.no_grad()
def distribution_statistics(
    hidden: Float[Tensor, "M d"], layer: OutputLayer, names: Iterable[str], *, temperature: float = 1.0
) -> dict[str, Float[Tensor, "M"]]:
    """Return `STATISTICS` of each predicted distribution (float32, no grad)."""
    result = {name: hidden.new_empty(len(hidden), dtype=torch.float32) for name in names}
    rows = chunk_rows(layer.num_tokens, hidden.device)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        logp = layer.log_softmax(hidden[part], temperature)
        for name, values in result.items():
            values[part] = STATISTICS[name](logp)
    return result
