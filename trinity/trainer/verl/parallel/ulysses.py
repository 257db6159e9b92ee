"""Sequence parallelism: ranks share the tokens of a packed list.

    [n, Q, D] --all-to-all--> [N, Q / ranks, D]: attention --all-to-all--> [n, Q, D]

Dimension key: N = packed tokens, n = a rank's tokens, Q = query heads, H = key heads, D = head size, q and h = a rank's
share of the heads, M = scored positions, m = those of a rank. A rank computes every layer for its n tokens. For
attention, an all-to-all gives it all tokens of its share of the heads; a second one returns the outputs
(arXiv:2309.14509).
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
from trinity.preflight.division import sequence_problem
from trinity.trainer.verl.parallel.exchange import exchange


@dataclass(frozen=True)
class Slice:
    """A rank's part of a packed list.

    Attributes:
        group: the ranks that share the list.
        size: number of them.
        index: of this rank.
        num_tokens: N; the last rank's part is padded.
        scored: indices of this rank's scored positions among all of them.
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
        """Return this rank's part of one number per token, padded with zeros."""
        padded = torch.nn.functional.pad(x, (0, self.length * self.size - self.num_tokens))
        return padded[self.start : self.start + self.length]

    def attend(
        self,
        queries: Float[Tensor, "n Q D"],
        keys: Float[Tensor, "n H D"],
        values: Float[Tensor, "n H D"],
        whole: Callable[
            [Float[Tensor, "N q D"], Float[Tensor, "N h D"], Float[Tensor, "N h D"]], Float[Tensor, "N q*D"]
        ],
    ) -> Float[Tensor, "n Q*D"]:
        """Return the attention outputs of this rank's tokens.

        `whole` computes those of all tokens for some heads.
        """
        repeat = max(1, self.size // keys.shape[1])
        if repeat > 1:  # fewer key heads than ranks: several ranks need the same
            keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        q, k, v = (exchange(x, self._to_heads, self._to_tokens)[: self.num_tokens] for x in (queries, keys, values))
        out = whole(q, k, v)
        missing = self.length * self.size - self.num_tokens
        out = torch.nn.functional.pad(out, (0, 0, 0, missing)).view(self.length * self.size, -1, queries.shape[2])
        own = exchange(out, self._to_tokens, self._to_heads)
        return own.reshape(own.shape[0], -1)

    def collect(self, values: Float[Tensor, "m"], num_scored: int) -> Float[Tensor, "M"]:
        """Return all scored values on every rank; own ones get the gradient."""
        result: Tensor = _Collect.apply(values, self, num_scored)
        return result

    def _swap(self, x: Tensor) -> Tensor:
        """Send `x[r]` to rank r; return what all ranks sent here [ranks, ...]."""
        received = torch.empty_like(x)
        distributed.all_to_all_single(received, x.contiguous(), group=self.group)
        return received

    def _to_heads(self, x: Tensor) -> Tensor:
        """Exchange [n, heads, D] for all tokens: [ranks * n, heads / ranks, D]."""
        length, heads, width = x.shape
        parts = x.view(length, self.size, heads // self.size, width).transpose(0, 1)
        return self._swap(parts.contiguous()).reshape(self.size * length, heads // self.size, width)

    def _to_tokens(self, x: Tensor) -> Tensor:
        """Exchange [ranks * n, heads / ranks, D] for all heads: [n, heads, D]."""
        total, heads, width = x.shape
        parts = self._swap(x.reshape(self.size, total // self.size, heads, width))
        return parts.transpose(0, 1).reshape(total // self.size, self.size * heads, width)


class _Collect(torch.autograd.Function):
    """Values of all ranks, with the gradient of this rank's own values."""

    @staticmethod
    def forward(ctx: Any, values: Float[Tensor, "m"], piece: Slice, num_scored: int) -> Float[Tensor, "M"]:
        ctx.scored = piece.scored
        result = values.new_zeros(num_scored).index_copy_(0, piece.scored, values)
        distributed.all_reduce(result, group=piece.group)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "M"]) -> tuple[Float[Tensor, "m"], None, None]:
        return grad.index_select(0, ctx.scored), None, None


def check_heads(model: PreTrainedModel, size: int) -> None:
    """Check that `size` ranks can share the heads of `model`.

    Raises:
        ConfigError: they cannot (E1836).
    """
    problem = sequence_problem(model.config.to_dict(), size)
    if problem is not None:
        raise ConfigError(problem, code="E1836")
