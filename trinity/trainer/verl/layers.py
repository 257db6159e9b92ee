"""Building blocks of the decoder with their backward passes.

Dimension key: N = packed tokens, I = inputs, O = outputs, r = rank, H = heads, D = head size. They are written out
because the general implementations save and copy more: on a CPU these operations are memory-bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.trainer.verl.compiled_layers import (
    NARROW,
    CompiledNorm,
    CompiledRotation,
    CompiledSwiGLU,
    column_sums,
    is_compiled,
)
from trinity.utils.products import linear, matmul, weight_gradient

Gradients = tuple[Float[Tensor, "..."] | None, ...]  # by each argument of a forward pass, of its shape


class _Linear(torch.autograd.Function):
    """x W^T + b [N, O] with copies of parameters, which get the gradient.

    These are `num_weights` weights [O_i, I], then their biases [O_i], if any.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "N I"],
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, "O"] | None,
        num_weights: int,
        *parameters: Float[Tensor, "..."],
    ) -> Float[Tensor, "N O"]:
        ctx.save_for_backward(x, weight)
        ctx.sizes = [parameter.shape[0] for parameter in parameters[:num_weights]]
        ctx.has_bias = bias is not None
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "N O"]) -> Gradients:
        x, weight = ctx.saved_tensors
        grad_x = matmul(grad, weight) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[4:]):
            return grad_x, *(None for _ in ctx.needs_input_grad[1:])
        whole = weight_gradient(grad, x).to(torch.float32, memory_format=torch.contiguous_format)
        grads: list[Tensor | None] = list(whole.split(ctx.sizes))
        if ctx.has_bias:
            grads.extend(column_sums(grad).split(ctx.sizes))
        return grad_x, None, None, None, *grads


@dataclass(frozen=True)
class LowRank:
    """A low-rank addition to a frozen weight.

        W = W0 + s B A

    W0 is [O, I] (arXiv:2106.09685, section 4.1).

    Attributes:
        down: parameter A [r, I] in float32.
        up: parameter B [O, r] in float32.
        scale: s, for plain LoRA alpha / r.
    """

    down: Tensor
    up: Tensor
    scale: float

    def merged(self, weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        """Return `weight` with the addition."""
        return weight + (self.up @ self.down) * self.scale


class _LowRankLinear(torch.autograd.Function):
    """y = x W^T + b with W = W0 + s B A and gradients of A and B, x [N, I].

    The backward pass needs no product of the size of W.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "N I"],
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, "O"] | None,
        parts: Sequence[tuple[int, int, float]],
        *parameters: Float[Tensor, "_ _"],
    ) -> Float[Tensor, "N O"]:
        ctx.save_for_backward(x, weight, *parameters)
        ctx.parts = parts
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "N O"]) -> Gradients:
        x, weight, *parameters = ctx.saved_tensors
        grads: list[Tensor] = []
        for (start, size, scale), down, up in zip(ctx.parts, parameters[::2], parameters[1::2], strict=True):
            part = grad.narrow(1, start, size).contiguous()
            grads.append(weight_gradient(matmul(part, up.to(part.dtype)), x).float() * scale)
            grads.append(weight_gradient(part, matmul(x, down.to(x.dtype).t())).float() * scale)
        return matmul(grad, weight) if ctx.needs_input_grad[0] else None, None, None, None, *grads


class FusedLinear:
    """Linear layers of one input, computed as one product.

    Args:
        weights: parameters [O_i, I] in float32; the gradient goes to each.
        biases: parameters [O_i], or nothing.
        dtype: data type of the product.
        low_rank: addition to each weight, None where there is none; with one, only additions get a gradient.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor] = (),
        *,
        dtype: torch.dtype,
        low_rank: Sequence[LowRank | None] = (),
    ) -> None:
        self.weights = tuple(weights)
        self.biases = tuple(biases)
        self.dtype = dtype
        self.low_rank = tuple(low_rank) or (None,) * len(self.weights)
        starts = itertools.accumulate((weight.shape[0] for weight in self.weights), initial=0)
        added = [(a, s, w.shape[0]) for a, s, w in zip(self.low_rank, starts, self.weights, strict=False) if a]
        self._parts = tuple((start, size, addition.scale) for addition, start, size in added)
        self._adapters = tuple(tensor for addition, *_ in added for tensor in (addition.down, addition.up))
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None

    def refresh(self) -> None:
        """Drop the copy of the parameters; call this whenever they change."""
        self._weight = self._bias = None

    def __call__(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N O"]:
        """Return the outputs of all maps, side by side."""
        if self._weight is None:
            self._weight = _stacked(self._merged(), self.dtype)
            self._bias = _stacked(self.biases, self.dtype) if self.biases else None
        if not torch.is_grad_enabled():
            return linear(x, self._weight, self._bias)
        if self._parts:
            return _LowRankLinear.apply(x, self._weight, self._bias, self._parts, *self._adapters)
        return _Linear.apply(x, self._weight, self._bias, len(self.weights), *self.weights, *self.biases)

    @torch.no_grad()
    def _merged(self) -> list[Tensor]:
        return [w if a is None else a.merged(w) for w, a in zip(self.weights, self.low_rank, strict=True)]


def _stacked(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    with torch.no_grad():
        return parameters[0].detach().to(dtype) if len(parameters) == 1 else torch.cat(list(parameters)).to(dtype)


class _RMSNorm(torch.autograd.Function):
    """x / rms(x) * weight over [..., I] in float32, cast to another type."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "*shape I"], weight: Float[Tensor, "I"], eps: float, dtype: torch.dtype
    ) -> Float[Tensor, "*shape I"]:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        normed = wide * scale
        ctx.save_for_backward(normed, scale, weight)
        ctx.dtype = x.dtype
        return (normed * weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "*shape I"]
    ) -> tuple[Float[Tensor, "*shape I"], Float[Tensor, "I"] | None, None, None]:
        normed, scale, weight = ctx.saved_tensors
        grad = grad.float()
        size = weight.shape[0]
        inner = grad * normed
        grad_weight = inner.reshape(-1, size).sum(0) if ctx.needs_input_grad[1] else None
        projection = torch.mv(inner.reshape(-1, size), weight).view(scale.shape) / size
        grad_x = grad.mul(weight).addcmul_(normed, projection, value=-1.0).mul_(scale)
        return grad_x.to(ctx.dtype), grad_weight, None, None


def rms_norm(
    x: Float[Tensor, "*shape I"], weight: Float[Tensor, "I"], *, eps: float, dtype: torch.dtype
) -> Float[Tensor, "*shape I"]:
    """Return x / sqrt(mean(x^2) + eps) * weight as `dtype`.

    It is computed in float32.
    """
    if is_compiled(x, of_model=NARROW, dtype=dtype):
        return CompiledNorm.apply(x, None, weight, eps, dtype)[1]
    return _RMSNorm.apply(x, weight, eps, dtype)


def add_rms_norm(
    x: Float[Tensor, "N I"],
    added: Float[Tensor, "N I"] | None,
    weight: Float[Tensor, "I"],
    *,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "N I"], Float[Tensor, "N I"]]:
    """Return x + added, and its `rms_norm` as `dtype`.

    Without `added` the sum is x.
    """
    if added is None:
        return x, rms_norm(x, weight, eps=eps, dtype=dtype)
    if x.dtype == torch.float32 and added.dtype == dtype and is_compiled(x, of_model=NARROW, dtype=dtype):
        return CompiledNorm.apply(x, added, weight, eps, dtype)
    total = x + added
    return total, rms_norm(total, weight, eps=eps, dtype=dtype)


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up [N, I], from gate and up side by side [N, 2 I]."""

    @staticmethod
    def forward(ctx: Any, fused: Float[Tensor, "N two_I"]) -> Float[Tensor, "N I"]:
        ctx.save_for_backward(fused)
        gate, up = fused.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "N I"]) -> Float[Tensor, "N two_I"]:
        (fused,) = ctx.saved_tensors
        gate, up = fused.chunk(2, dim=-1)
        result = torch.empty_like(fused)
        grad_gate, grad_up = result.chunk(2, dim=-1)
        torch.mul(torch.nn.functional.silu(gate), grad, out=grad_up)
        grad_gate.copy_(torch.ops.aten.silu_backward(grad * up, gate))
        return result


def swiglu(fused: Float[Tensor, "N two_I"]) -> Float[Tensor, "N I"]:
    """Return silu(gate) * up, where `fused` holds gate and up side by side.

    Compiled kernels compute it if they are available and the run need not be deterministic.
    """
    return CompiledSwiGLU.apply(fused) if is_compiled(fused) else _SwiGLU.apply(fused)


class _Rotate(torch.autograd.Function):
    """Rotary embedding of [N, H, D]; `sin` has its first half negated."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "N H D"], cos: Float[Tensor, "N 1 D"], sin: Float[Tensor, "N 1 D"]
    ) -> Float[Tensor, "N H D"]:
        ctx.save_for_backward(cos, sin)
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "N H D"]) -> tuple[Float[Tensor, "N H D"], None, None]:
        cos, sin = ctx.saved_tensors
        return torch.add(grad * cos, (grad * sin).roll(grad.shape[-1] // 2, -1)), None, None


def rotate(
    x: Float[Tensor, "N H D"], cos: Float[Tensor, "N 1 D"], sin: Float[Tensor, "N 1 D"]
) -> Float[Tensor, "N H D"]:
    """Return `x` rotated by its position (arXiv:2104.09864).

        x * cos + roll(x, D / 2) * sin

    `sin` has its first half negated.
    """
    if is_compiled(x, of_model=NARROW):
        return CompiledRotation.apply(x, cos, sin)
    return _Rotate.apply(x, cos, sin)


class _Spread(torch.autograd.Function):
    """Rows [n, ...] copied to their slots in zeros [size, ...]."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "n *rest"], slots: Int[Tensor, "n"], size: int
    ) -> Float[Tensor, "size *rest"]:
        ctx.save_for_backward(slots)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, slots, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "size *rest"]) -> tuple[Float[Tensor, "n *rest"], None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Collect(torch.autograd.Function):
    """Rows [n, ...] read from distinct slots of [size, ...]."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "size *rest"], slots: Int[Tensor, "n"]) -> Float[Tensor, "n *rest"]:
        ctx.save_for_backward(slots)
        ctx.size = x.shape[0]
        return x.index_select(0, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "n *rest"]) -> tuple[Float[Tensor, "size *rest"], None]:
        return grad.new_zeros(ctx.size, *grad.shape[1:]).index_copy_(0, ctx.saved_tensors[0], grad), None


def spread(x: Float[Tensor, "n *rest"], slots: Int[Tensor, "n"] | None, size: int) -> Float[Tensor, "size *rest"]:
    """Return zeros of `size` rows with `x` at `slots`; `x` if slots is None."""
    return x if slots is None else _Spread.apply(x, slots, size)


def collect(x: Float[Tensor, "size *rest"], slots: Int[Tensor, "n"] | None) -> Float[Tensor, "n *rest"]:
    """Return the rows of `x` at the distinct `slots`; without them, `x`."""
    return x if slots is None else _Collect.apply(x, slots)
