"""The output layer, from the last hidden states to logits.

Dimension key: M = scored tokens, d = hidden size, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from trinity.utils.products import matmul


@dataclass(frozen=True)
class LogitRule:
    """Scale and bound that some families apply after the linear layer.

        logits = softcap * tanh(scale * products / softcap)

    Attributes:
        scale: factor (Cohere's logit_scale, one over Granite's logits_scaling).
        softcap: bound of Gemma's logits (arXiv:2408.00118, section 2); None: there is none.
    """

    scale: float = 1.0
    softcap: float | None = None

    def apply(self, products: Float[Tensor, "M V"]) -> Float[Tensor, "M V"]:
        """Return the logits; `products` is overwritten."""
        if self.scale != 1.0:
            products = products.mul_(self.scale)
        if self.softcap is None:
            return products
        return products.div_(self.softcap).tanh_().mul_(self.softcap)

    def backward(self, grad: Float[Tensor, "M V"], logits: Float[Tensor, "M V"] | None) -> Float[Tensor, "M V"]:
        """Turn the gradient of the logits into that of the products, in place."""
        if self.softcap is not None:
            assert logits is not None, "a bounded logit's slope depends on the logit"
            grad = grad.mul_(1.0 - (logits / self.softcap).square_())
        return grad if self.scale == 1.0 else grad.mul_(self.scale)


PLAIN = LogitRule()


@dataclass(frozen=True)
class OutputLayer:
    """The current weights of the output layer.

    Attributes:
        weight: in the data type of the products.
        bias: float32, if there is one.
        parameter: the float32 parameter that `weight` is a copy of; it gets the gradient.
        rule: scale and bound of the products.
    """

    weight: Float[Tensor, "V d"]
    bias: Float[Tensor, "V"] | None
    parameter: Float[Tensor, "V d"]
    rule: LogitRule = field(default=PLAIN)

    @property
    def num_tokens(self) -> int:
        """Size of the vocabulary, V."""
        return self.weight.shape[0]

    def logits(self, hidden: Float[Tensor, "M d"]) -> Float[Tensor, "M V"]:
        """Return the logits in float32, without a gradient."""
        products = matmul(hidden, self.weight.t()).float()
        if self.bias is not None:
            products += self.bias
        return self.rule.apply(products)

    def log_softmax(self, hidden: Float[Tensor, "M d"], temperature: float) -> Float[Tensor, "M V"]:
        """Return log-probabilities (nats, float32) at a softmax temperature."""
        logits = self.logits(hidden)
        return torch.log_softmax(logits if temperature == 1.0 else logits.div_(temperature), 1)

    def detached(self) -> OutputLayer:
        """Return the layer detached from the graph: no gradient reaches it."""
        bias = None if self.bias is None else self.bias.detach()
        return replace(self, weight=self.weight.detach(), bias=bias, parameter=self.parameter.detach())
