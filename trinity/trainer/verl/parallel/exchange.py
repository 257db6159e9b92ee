"""Exchanges of tensors between ranks, and a rank's part of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

Move = Callable[[Tensor], Tensor]


def exchange(x: Tensor, there: Move, back: Move) -> Tensor:
    """Return `there(x)`; `back` turns its gradient into that of `x`.

    The gradient of `x` is cut to the rows of `x` [rows, ...].
    """
    result: Tensor = _Exchange.apply(x, there, back)
    return result


def as_it_is(x: Tensor) -> Tensor:
    """Return a view of `x` of any shape: a move that changes nothing."""
    return x.view_as(x)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory.

    An unsharded tensor, of any shape, is its own part.
    """
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor gathered from all ranks, which all call this.

    An unsharded tensor, of any shape, is returned as it is.
    """
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Shaped[Tensor, "rows *rest"], there: Move, back: Move) -> Shaped[Tensor, "moved *changed"]:
        ctx.back, ctx.num_rows = back, len(x)
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Shaped[Tensor, "moved *changed"]) -> tuple[Shaped[Tensor, "rows *rest"], None, None]:
        return ctx.back(grad.contiguous())[: ctx.num_rows], None, None
