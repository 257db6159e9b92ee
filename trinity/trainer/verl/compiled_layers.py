"""Building blocks of the decoder by compiled kernels.

Each reads its inputs and writes its results once. They serve runs that are not deterministic; `layers` chooses between
them and the library's operations.

Dimension key: N = packed tokens, I = size of a token, H = heads, D = head size.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.utils.fused.choice import uses_kernels

NARROW = 8
"""A layer's largest activation has about this many times the elements of its input; see `of_model`."""


def is_compiled(x: Float[Tensor, "..."], *, of_model: int = 1, dtype: torch.dtype | None = None) -> bool:
    """Return whether kernels compute an operation on `x`.

    Args:
        x: what is read.
        of_model: elements of a layer's largest activation divided by those of `x`; kernels need a large one.
        dtype: data type of the result; None: that of `x`.
    """
    return (
        not torch.are_deterministic_algorithms_enabled()
        and uses_kernels(of_model * x.numel(), device=x.device, dtype=x.dtype)
        and (dtype is None or uses_kernels(of_model * x.numel(), device=x.device, dtype=dtype))
    )


class CompiledSwiGLU(torch.autograd.Function):
    """silu(gate) * up [N, I], from gate and up side by side [N, 2 I]."""

    @staticmethod
    def forward(ctx: Any, fused: Float[Tensor, "N two_I"]) -> Float[Tensor, "N I"]:
        """Return the product."""
        from trinity.utils.fused import decoding  # with Numba, half a second of imports
        from trinity.utils.fused.machine import LIKE

        fused = fused.contiguous()
        ctx.save_for_backward(fused)
        out = fused.new_empty(len(fused), fused.shape[1] // 2)
        decoding.gate(fused.data_ptr(), out.data_ptr(), *out.shape, LIKE[fused.dtype])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "N I"]) -> Float[Tensor, "N two_I"]:
        """Return the gradient of gate and up."""
        from trinity.utils.fused import training
        from trinity.utils.fused.machine import like_of

        (fused,) = ctx.saved_tensors
        grad, result = grad.contiguous(), torch.empty_like(fused)
        training.gate_backward(fused.data_ptr(), grad.data_ptr(), result.data_ptr(), *grad.shape, like_of(fused, grad))
        return result


class CompiledNorm(torch.autograd.Function):
    """x + added, and that sum's RMS norm as another data type."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*shape I"],
        added: Float[Tensor, "*shape I"] | None,
        weight: Float[Tensor, "I"],
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[Float[Tensor, "*shape I"] | None, Float[Tensor, "*shape I"]]:
        """Return the sum, if there is something to add, and its norm."""
        from trinity.utils.fused import training
        from trinity.utils.fused.machine import LIKE

        x, size = x.contiguous(), x.shape[-1]
        rows = x.numel() // size
        added = None if added is None else added.contiguous()
        total = x if added is None else torch.empty_like(x)
        out, scales = torch.empty(x.shape, dtype=dtype), torch.empty(rows)
        kept = weight.detach().float().contiguous()
        tensors = (x, added, kept, total, out, scales)
        training.norm(*(_address(t) for t in tensors), rows, size, eps, (LIKE[x.dtype], LIKE[dtype]))
        ctx.save_for_backward(total, scales, kept)
        ctx.dtype, ctx.is_sum = dtype, added is not None
        ctx.set_materialize_grads(False)
        return None if added is None else total, out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_total: Float[Tensor, "*shape I"] | None, grad: Float[Tensor, "*shape I"] | None
    ) -> tuple[
        Float[Tensor, "*shape I"] | None, Float[Tensor, "*shape I"] | None, Float[Tensor, "I"] | None, None, None
    ]:
        """Return the gradients of both summands and of the weight."""
        from trinity.utils.fused import training
        from trinity.utils.fused.machine import LIKE

        total, scales, weight = ctx.saved_tensors
        if grad is None:
            return of_total, None if of_total is None else of_total.to(ctx.dtype), None, None, None
        size = len(weight)
        grad = grad.contiguous()
        of_total = None if of_total is None else of_total.contiguous()
        found = torch.empty_like(total)
        of_added = torch.empty_like(grad) if ctx.is_sum and ctx.needs_input_grad[1] else None
        of_weight = torch.zeros(size) if ctx.needs_input_grad[2] else None
        buffer = torch.empty(size)
        training.norm_backward(
            *(_address(t) for t in (total, weight, scales)),
            (_address(grad), _address(of_total)),
            (_address(found), _address(of_added), _address(of_weight)),
            buffer.data_ptr(),
            total.numel() // size,
            size,
            (LIKE[total.dtype], LIKE[ctx.dtype]),
        )
        return found, of_added, of_weight, None, None


class CompiledRotation(torch.autograd.Function):
    """Rotary embedding of [N, H, D]; `sin` has its first half negated."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "N H D"], cos: Float[Tensor, "N 1 D"], sin: Float[Tensor, "N 1 D"]
    ) -> Float[Tensor, "N H D"]:
        """Return the rotated heads."""
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        return rotated(in_rows(x), cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "N H D"]) -> tuple[Float[Tensor, "N H D"], None, None]:
        """Return the gradient of the heads."""
        return rotated(in_rows(grad), *ctx.saved_tensors, is_backward=True), None, None


def rotated(
    x: Float[Tensor, "N heads D"],
    cos: Float[Tensor, "N 1 D"],
    sin: Float[Tensor, "N 1 D"],
    *,
    others: int = 0,
    is_backward: bool = False,
) -> Float[Tensor, "N heads D"]:
    """Return rotated heads, or the gradient of what was rotated.

    Args:
        x: the heads of a token one after another; a gradient may be of another data type than the result.
        cos: of the positions, in the data type of the result.
        sin: likewise, its first half negated.
        others: the last heads, which are only copied.
        is_backward: return the gradient.

    Raises:
        TypeError: heads, cosine and sine have several data types.
    """
    from trinity.utils.fused import training
    from trinity.utils.fused.machine import LIKE, like_of

    out = torch.empty(x.shape, dtype=cos.dtype)
    addresses = (t.data_ptr() for t in (x, cos, sin, out))
    sizes = (x.shape[0], x.shape[1] - others, x.shape[2], x.stride(0))
    likes = LIKE[x.dtype], like_of(cos, sin) if is_backward else like_of(x, cos, sin)
    training.rotate(*addresses, sizes, others, is_backward, likes)
    return out


def column_sums(x: Float[Tensor, "N I"]) -> Float[Tensor, "I"]:
    """Return the sums of columns in float32."""
    if not is_compiled(x, of_model=NARROW):
        return x.sum(0, dtype=torch.float32)
    from trinity.utils.fused import training
    from trinity.utils.fused.machine import LIKE

    x, out, buffer = x.contiguous(), torch.zeros(x.shape[1]), torch.empty(x.shape[1])
    training.column_sums(x.data_ptr(), out.data_ptr(), buffer.data_ptr(), *x.shape, LIKE[x.dtype])
    return out


def in_rows(x: Float[Tensor, "N H D"]) -> Float[Tensor, "N H D"]:
    """Return `x` with the heads of a token one after another."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
