"""Causal attention in blocks, written out as products and a softmax.

Dimension key: B = sequences, P = positions of a shared prompt, L = positions of a sequence after it, W = P + L,
Q = query heads, H = key heads, R = Q / H, D = size of queries and keys, E = size of values, b, l, w = those of a block.

At most one block of weights exists at a time. The code is written out because the library's kernels support neither
soft caps nor prompts that several sequences share. The backward pass computes the weights again, so that memory is
linear in the length. Float32 is widened to float64, as in the engine: sums over different numbers of keys then round
alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_WEIGHTS = 2**20
"""Weights of a block: 8 MiB in float64, which a processor's cache holds."""
QUERY_BLOCK = 256


@dataclass(frozen=True)
class _Pattern:
    """Which keys each query sees.

    Attributes:
        past: P.
        window: number of positions that a query sees, its own included; None: all before it.
        softcap: scores s become softcap * tanh(s / softcap); None: they stay.
    """

    past: int
    window: int | None
    softcap: float | None

    def keys_of(self, first: int, last: int) -> slice:
        """Return the keys that queries `first` to `last` - 1 can see."""
        lowest = 0 if self.window is None else max(0, first - self.window + 1)
        return slice(self.past + lowest if self.window is not None else 0, self.past + last)

    def bias(self, queries: slice, keys: slice, like: Tensor) -> Tensor:
        """Return [l, w]: 0 where a query sees a key, -inf elsewhere."""
        own = torch.arange(queries.start, queries.stop, device=like.device)[:, None]
        other = torch.arange(keys.start - self.past, keys.stop - self.past, device=like.device)
        hidden = other > own
        if self.window is not None:
            hidden = hidden | (other <= own - self.window)
        return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, float("-inf"))


class _Block:
    """Attention of one block of sequences and queries.

    Args:
        q: queries [b, l, Q, D].
        k: keys [b, w, H, D].
        v: values [b, w, H, E].
        sinks: score [Q] of each query head that takes weight but has no value, or None.
        bias: [l, w], added to the scores.
        hidden: [b, w] bias of each sequence's keys, or None.
        softcap: see `_Pattern`.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        *,
        bias: Tensor,
        hidden: Tensor | None,
        softcap: float | None,
    ) -> None:
        self.rows, self.length, num_queries, self.size = q.shape
        self.heads, self.width = k.shape[2], k.shape[1]
        self.repeat, self.softcap = num_queries // self.heads, softcap
        self.q, self.k, self.v = self._grouped(q), self._stacked(k), self._stacked(v)
        scores = torch.bmm(self.q, self.k.transpose(1, 2))
        self.capped = None if softcap is None else torch.tanh(scores / softcap)
        scores = scores if softcap is None or self.capped is None else self.capped * softcap
        scores = scores.view(self.rows, num_queries, self.length, self.width) + bias
        if hidden is not None:
            scores = scores + hidden[:, None, None]
        if sinks is not None:
            column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(self.rows, -1, self.length, 1)
            scores = torch.cat([scores, column], -1)
        wide = scores if scores.dtype == torch.float64 else scores.float()
        self.weights = torch.softmax(wide, -1)

    def _grouped(self, x: Tensor) -> Tensor:
        """Return [b H, R l, size] of queries or outputs [b, l, Q, size]."""
        parts = x.view(self.rows, self.length, self.heads, self.repeat, -1).permute(0, 2, 3, 1, 4)
        return parts.reshape(self.rows * self.heads, self.repeat * self.length, -1)

    def _ungrouped(self, x: Tensor) -> Tensor:
        """Undo `_grouped`: return [b, l, Q, size]."""
        parts = x.view(self.rows, self.heads, self.repeat, self.length, -1).permute(0, 3, 1, 2, 4)
        return parts.reshape(self.rows, self.length, self.heads * self.repeat, -1)

    def _stacked(self, x: Tensor) -> Tensor:
        """Return [b H, w, size] of keys or values [b, w, H, size]."""
        return x.transpose(1, 2).reshape(self.rows * self.heads, self.width, -1)

    def _unstacked(self, x: Tensor) -> Tensor:
        return x.view(self.rows, self.heads, self.width, -1).transpose(1, 2)

    def _of_keys(self, x: Tensor) -> Tensor:
        """Return [b H, R l, w] of [b, Q, l, w (+ 1)] in the type of the products."""
        kept = x[..., : self.width].to(self.v.dtype)
        return kept.reshape(self.rows * self.heads, self.repeat * self.length, self.width)

    def output(self) -> Tensor:
        """Return [b, l, Q, E]."""
        return self._ungrouped(torch.bmm(self._of_keys(self.weights), self.v))

    def gradients(self, grad: Tensor, *, with_sinks: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the gradients of queries, keys, values and sinks.

        `grad` [b, l, Q, E] is that of the output.
        """
        of_output, weights = self._grouped(grad), self.weights
        of_weights = torch.bmm(of_output, self.v.transpose(1, 2)).to(weights.dtype)
        of_weights = of_weights.view(self.rows, -1, self.length, self.width)
        if with_sinks:
            of_weights = torch.nn.functional.pad(of_weights, (0, 1))
        of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_sinks = of_scores[..., -1].sum((0, 2)) if with_sinks else None
        scores = self._of_keys(of_scores)
        if self.capped is not None:
            scores = scores * (1.0 - self.capped.square())
        of_values = torch.bmm(self._of_keys(weights).transpose(1, 2), of_output)
        of_keys = torch.bmm(scores.transpose(1, 2), self.q)
        of_queries = torch.bmm(scores, self.k)
        return self._ungrouped(of_queries), self._unstacked(of_keys), self._unstacked(of_values), of_sinks


def _blocks(queries: Tensor, pattern: _Pattern) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the slices of sequences, queries and keys of each block."""
    batch, length, heads, _ = queries.shape
    for first in range(0, length, QUERY_BLOCK):
        last = min(length, first + QUERY_BLOCK)
        keys = pattern.keys_of(first, last)
        rows = max(1, BLOCK_WEIGHTS // (heads * (last - first) * (keys.stop - keys.start)))
        for start in range(0, batch, rows):
            yield slice(start, min(batch, start + rows)), slice(first, last), keys


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "B L Q D"],
        k: Float[Tensor, "B W H D"],
        v: Float[Tensor, "B W H E"],
        sinks: Float[Tensor, "Q"] | None,
        hidden: Float[Tensor, "B W"] | None,
        pattern: _Pattern,
    ) -> Float[Tensor, "B L Q E"]:
        ctx.save_for_backward(q, k, v, sinks, hidden)
        ctx.pattern = pattern
        out = q.new_empty(*q.shape[:3], v.shape[3])
        for rows, queries, keys in _blocks(q, pattern):
            out[rows, queries] = _block(q, k, v, sinks, hidden, pattern, rows, queries, keys).output()
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "B L Q E"]
    ) -> tuple[
        Float[Tensor, "B L Q D"],
        Float[Tensor, "B W H D"],
        Float[Tensor, "B W H E"],
        Float[Tensor, "Q"] | None,
        None,
        None,
    ]:
        q, k, v, sinks, hidden = ctx.saved_tensors
        of_q = torch.empty_like(q)
        # Each block adds to the keys before it: narrow sums would lose more with every block.
        of_k, of_v = (torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in (k, v))
        of_sinks = None if sinks is None else torch.zeros_like(sinks)
        for rows, queries, keys in _blocks(q, ctx.pattern):
            block = _block(q, k, v, sinks, hidden, ctx.pattern, rows, queries, keys)
            part = grad[rows, queries].to(block.q.dtype)
            of_queries, of_keys, of_values, of_sink = block.gradients(part, with_sinks=sinks is not None)
            of_q[rows, queries] = of_queries.to(q.dtype)
            of_k[rows, keys] += of_keys.to(of_k.dtype)
            of_v[rows, keys] += of_values.to(of_v.dtype)
            if of_sinks is not None and of_sink is not None:
                of_sinks += of_sink.to(of_sinks.dtype)
        return of_q, of_k.to(k.dtype), of_v.to(v.dtype), of_sinks, None, None


def _block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    hidden: Tensor | None,
    pattern: _Pattern,
    rows: slice,
    queries: slice,
    keys: slice,
) -> _Block:
    wide = torch.float64 if q.dtype == torch.float32 else q.dtype
    parts = q[rows, queries].to(wide), k[rows, keys].to(wide), v[rows, keys].to(wide)
    own = None if hidden is None else hidden[rows, keys].to(wide)
    bias = pattern.bias(queries, keys, q.new_empty(0, dtype=wide))
    return _Block(*parts, sinks, bias=bias, hidden=own, softcap=pattern.softcap)


def blockwise(
    queries: Float[Tensor, "B L Q D"],
    keys: Float[Tensor, "B W H D"],
    values: Float[Tensor, "B W H E"],
    *,
    past_lengths: Int[Tensor, "B"] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Q"] | None = None,
) -> Float[Tensor, "B L Q E"]:
    """Return causal attention over sequences that are padded on the right.

        out[i] = sum over j of softmax_j(q[i] . k[j]) v[j],  j <= P + i

    Padding lies on the right, where no query looks.

    Args:
        queries: scaled.
        keys: the first P = W - L positions are a shared prompt, which every query sees.
        values: likewise.
        past_lengths: length of each sequence's prompt, if some prompts are padded on the right.
        window: number of positions that a query sees, its own included; None: all. Not with a prompt.
        softcap: scores s become softcap * tanh(s / softcap) (arXiv:2408.00118, section 2).
        sinks: score of each query head that takes weight but has no value (arXiv:2309.17453, as in gpt-oss).
    """
    past = keys.shape[1] - queries.shape[1]
    assert not (past and window), "windows are not counted across a shared prompt"
    hidden = None
    if past_lengths is not None:
        is_padding = torch.arange(keys.shape[1], device=keys.device) >= past_lengths[:, None]
        is_padding[:, past:] = False
        hidden = torch.zeros(is_padding.shape, dtype=queries.dtype, device=queries.device)
        hidden.masked_fill_(is_padding, float("-inf"))
    window = None if window is not None and window >= queries.shape[1] else window
    return _Blockwise.apply(queries, keys, values, sinks, hidden, _Pattern(past, window, softcap))
