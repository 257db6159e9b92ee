"""Sequence parallelism (arXiv:2309.14509): ranks share the tokens of a packed list, and in attention its heads.

Dimension key: N = packed tokens, n = a rank's tokens, Q = query heads, H = key heads, D = head size, M = scored
positions, m = those of a rank. A rank computes every layer for its n tokens. For attention, an all-to-all gives it all
tokens of its share of the heads; a second one brings the outputs back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from trinity.common.errors import ConfigError
from trinity.common.models.preflight_division import sequence_problem


@dataclass(frozen=True)
class Slice:
    """A rank's part of a packed list.

    Attributes:
        group: the ranks that share it.
        size: number of them.
        index: of this one.
        num_tokens: N; the last rank's part is padded.
        scored: places of this rank's scored positions among all of them.
    """

    group: Any
    size: int
    index: int
    num_tokens: int
    scored: Int[Tensor, "m"]

    @property
    def length(self) -> int:
        """Tokens of each rank, padding included."""
        return -(-self.num_tokens // self.size)

    @property
    def start(self) -> int:
        """Place of this rank's first token."""
        return self.index * self.length

    def cut(self, x: Int[Tensor, "N"]) -> Int[Tensor, "n"]:
        """Return this rank's part of one number a token, padded with zeros."""
        padded = torch.nn.functional.pad(x, (0, self.length * self.size - self.num_tokens))
        return padded[self.start : self.start + self.length]

    def attend(
        self,
        queries: Float[Tensor, "n Q D"],
        keys: Float[Tensor, "n H D"],
        values: Float[Tensor, "n H D"],
        whole: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Float[Tensor, "n Q*D"]:
        """Return the attention outputs of this rank's tokens; `whole` computes those of all tokens for some heads."""
        repeat = max(1, self.size // keys.shape[1])
        if repeat > 1:  # fewer key heads than ranks: several ranks need the same
            keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        q, k, v = (_ToHeads.apply(x, self)[: self.num_tokens] for x in (queries, keys, values))
        out = whole(q, k, v)
        missing = self.length * self.size - self.num_tokens
        out = torch.nn.functional.pad(out, (0, 0, 0, missing)).view(self.length * self.size, -1, queries.shape[2])
        own: Tensor = _ToTokens.apply(out, self)
        return own.reshape(own.shape[0], -1)

    def collect(self, values: Float[Tensor, "m"], num_scored: int) -> Float[Tensor, "M"]:
        """Return the values of all scored positions, on every rank; the gradient goes to this rank's own."""
        result: Tensor = _Collect.apply(values, self, num_scored)
        return result


def _swap(x: Tensor, piece: Slice) -> Tensor:
    """Return what the ranks of the group send this one, of `x` [ranks, ...], in their order."""
    received = torch.empty_like(x)
    distributed.all_to_all_single(received, x.contiguous(), group=piece.group)
    return received


def _to_heads(x: Tensor, piece: Slice) -> Tensor:
    """From [n, heads, D] to [ranks * n, heads / ranks, D]."""
    length, heads, size = x.shape
    parts = x.view(length, piece.size, heads // piece.size, size).transpose(0, 1)
    return _swap(parts.contiguous(), piece).reshape(piece.size * length, heads // piece.size, size)


def _to_tokens(x: Tensor, piece: Slice) -> Tensor:
    """From [ranks * n, heads / ranks, D] to [n, heads, D]."""
    total, heads, size = x.shape
    parts = _swap(x.reshape(piece.size, total // piece.size, heads, size), piece)
    return parts.transpose(0, 1).reshape(total // piece.size, piece.size * heads, size)


class _ToHeads(torch.autograd.Function):
    """All tokens of a share of the heads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: Slice) -> Tensor:
        ctx.piece = piece
        return _to_heads(x, piece)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _to_tokens(grad.contiguous(), ctx.piece), None


class _ToTokens(torch.autograd.Function):
    """All heads of a share of the tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: Slice) -> Tensor:
        ctx.piece = piece
        return _to_tokens(x, piece)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _to_heads(grad.contiguous(), ctx.piece), None


class _Collect(torch.autograd.Function):
    """Values of all ranks; each rank has the whole loss, whose gradient by its own values is all that it owes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, piece: Slice, num_scored: int) -> Tensor:
        ctx.scored = piece.scored
        result = values.new_zeros(num_scored).index_copy_(0, piece.scored, values)
        distributed.all_reduce(result, group=piece.group)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.scored), None, None


def check_heads(model: PreTrainedModel, size: int) -> None:
    """Check that `size` ranks can share the heads of `model`.

    Raises:
        ConfigError: they cannot (E1836).
    """
    problem = sequence_problem(model.config.to_dict(), size)
    if problem is not None:
        raise ConfigError(problem, code="E1836")
