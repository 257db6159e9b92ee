"""Causal attention of packed tokens that are a forest.

In depth-first order every key is seen by the tokens after it in its own node (a triangle), and by all tokens below
that node, which are neighbours (a rectangle). A query's outputs over several pieces are merged by their log-sums:

    out = sum over pieces of exp(lse_piece - lse) out_piece,  lse = log of the sum of exp(lse_piece)

The gradient of a piece needs only the merged `out` and `lse` (arXiv:2310.01889, as ring attention does), so that no
weights are kept and memory is linear in the tokens of the forest.

Dimension key: N = packed tokens, Q = query heads, H = key heads, R = Q / H, D = size of queries and keys, E = size of
values, b = nodes of a piece, l = its queries, w = its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.trainer.prefixes import Node
from trinity.trainer.verl.attention_rule import Rule

BLOCK_WEIGHTS = 2**20
"""Weights of a written-out piece: 4 MiB in float32."""
QUERY_BLOCK = 256
MIN_BLOCK = 16
SHORT = 256
"""Longest triangle that is written out where the library's kernel could compute it, too."""
MAX_PADDING_FACTOR = 1.5
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class ForestPiece:
    """Queries and the keys that they see, in the packed list.

    Attributes:
        queries: first place of the queries of each node, and their number.
        keys: likewise, of the keys.
        places: positions in the rows of the first query and the first key, in a triangle; None in a rectangle.
        is_flash: the library's kernel computes it.
    """

    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    places: tuple[int, int] | None
    is_flash: bool


@lru_cache(maxsize=8)
def _pieces(
    nodes: tuple[Node, ...], is_flash: bool, is_wide: bool, window: int | None, weights_a_pair: int
) -> tuple[ForestPiece, ...]:
    """Return all pieces, triangles first: each query then has seen itself.

    Args:
        nodes: of the forest.
        is_flash: the library's kernel may compute long pieces.
        is_wide: numbers are float32 or wider. Products of narrower ones are faster than the kernel, which saves half of
            the products of a triangle, but none of a rectangle.
        window: see `Rule`.
        weights_a_pair: weights of a query and a key: the query heads.
    """
    found: list[ForestPiece] = []
    short = [node for node in nodes if node.length <= SHORT]
    for group in _alike(short):
        size = max(1, BLOCK_WEIGHTS // (weights_a_pair * max(node.length for node in group) ** 2))
        for first in range(0, len(group), size):
            spans = tuple((node.at, node.length) for node in group[first : first + size])
            found.append(ForestPiece(spans, spans, (0, 0), is_flash=False))
    for node in nodes:
        if node.length > SHORT:
            found += _triangle(node, is_flash, window, weights_a_pair)
    for node in nodes:
        if node.below:
            found += _rectangle(nodes, node, is_flash and is_wide, window, weights_a_pair)
    return tuple(found)


def _alike(nodes: list[Node]) -> Iterator[list[Node]]:
    """Group nodes of similar length: padding adds at most half to a group."""
    group: list[Node] = []
    total = 0
    for node in sorted(nodes, key=lambda node: -node.length):
        if group and (len(group) + 1) * group[0].length > MAX_PADDING_FACTOR * (total + node.length):
            yield group
            group, total = [], 0
        group.append(node)
        total += node.length
    if group:
        yield group


def _triangle(node: Node, is_flash: bool, window: int | None, weights_a_pair: int) -> Iterator[ForestPiece]:
    """Yield the pieces of a node's own tokens."""
    if is_flash:
        yield ForestPiece(((node.at, node.length),), ((node.at, node.length),), (0, 0), is_flash=True)
        return
    first = 0
    while first < node.length:
        lowest = 0 if window is None else max(0, first - window + 1)
        count = min(_block(first - lowest + QUERY_BLOCK, weights_a_pair), node.length - first)
        yield ForestPiece(
            ((node.at + first, count),), ((node.at + lowest, first + count - lowest),), (first, lowest), is_flash=False
        )
        first += count


def _rectangle(
    nodes: tuple[Node, ...], node: Node, is_flash: bool, window: int | None, weights_a_pair: int
) -> Iterator[ForestPiece]:
    """Yield the pieces of the tokens below a node over its own."""
    begin, end, keys = node.at + node.length, node.at + node.length + node.below, ((node.at, node.length),)
    if window is not None:
        below = (other for other in nodes if begin <= other.at < end)
        yield from (piece for other in below for piece in _windowed(node, other, window))
        return
    step = node.below if is_flash else _block(node.length, weights_a_pair)
    for first in range(begin, end, step):
        yield ForestPiece(((first, min(step, end - first)),), keys, None, is_flash)


def _windowed(node: Node, other: Node, window: int) -> Iterator[ForestPiece]:
    """Yield the pieces of a node below over the keys within its window."""
    for first in range(0, other.length, QUERY_BLOCK):
        place = other.start + first
        lowest = max(node.start, place - window + 1)
        skipped = lowest - node.start
        if skipped < node.length:
            queries = ((other.at + first, min(QUERY_BLOCK, other.length - first)),)
            yield ForestPiece(queries, ((node.at + skipped, node.length - skipped),), (place, lowest), is_flash=False)


def _block(num_keys: int, weights_a_pair: int) -> int:
    """Return how many queries of `num_keys` keys are computed at once."""
    return min(QUERY_BLOCK, max(MIN_BLOCK, BLOCK_WEIGHTS // (weights_a_pair * num_keys)))


class _Written:
    """Scores of one piece, written out: products, a soft cap, a mask.

    Args:
        piece: its queries and keys.
        q: all queries [N, Q, D], scaled.
        k: all keys [N, H, D].
        v: all values [N, H, E].
        rule: the layer's.
    """

    def __init__(self, piece: ForestPiece, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> None:
        self.piece, self.count = piece, len(piece.queries)
        self.length, self.width = (max(n for _, n in spans) for spans in (piece.queries, piece.keys))
        self.heads, self.repeat = k.shape[1], q.shape[1] // k.shape[1]
        self.q, self.k, self.v = self.grouped(q), self._stacked(k), self._stacked(v)
        scores = torch.bmm(self.q, self.k.transpose(1, 2))
        scores = scores if scores.dtype == torch.float64 else scores.float()
        self.capped = None if rule.softcap is None else torch.tanh(scores / rule.softcap)
        if self.capped is not None and rule.softcap is not None:
            scores = self.capped * rule.softcap
        hidden = self._hidden(rule.window, scores.device)
        if hidden is not None:
            view = scores.view(-1, self.repeat, self.length, self.width)
            scores = view.masked_fill(hidden, float("-inf")).view_as(scores)
        self.scores = scores

    def _hidden(self, window: int | None, device: torch.device) -> Tensor | None:
        """Return [l, w]: whether a query does not see a key; None: it sees all."""
        if self.piece.places is None:
            return None
        first, lowest = self.piece.places
        distance = torch.arange(first, first + self.length, device=device)[:, None] - torch.arange(
            lowest, lowest + self.width, device=device
        )
        return distance < 0 if window is None else (distance < 0) | (distance >= window)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return outputs [b H, R l, E] and log-sums [b H, R l]; none seen: -inf."""
        most = self.scores.amax(-1, keepdim=True).clamp_(min=-1e30)
        weights = torch.exp(self.scores - most)
        total = weights.sum(-1, keepdim=True)
        out = torch.bmm(weights.to(self.v.dtype), self.v).to(total.dtype)
        tiny = torch.finfo(total.dtype).tiny
        return out / total.clamp(min=tiny), (most + total.log()).squeeze(-1)

    def backward(self, grad: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries [b H, R l, D], keys and values."""
        weights = torch.exp(self.scores - lse[..., None])
        of_weights = torch.bmm(grad, self.v.transpose(1, 2)).to(weights.dtype)
        of_scores = weights * (of_weights - delta[..., None])
        if self.capped is not None:
            of_scores = of_scores * (1.0 - self.capped.square())
        of_scores, weights = of_scores.to(self.q.dtype), weights.to(self.q.dtype)
        of_values = torch.bmm(weights.transpose(1, 2), grad)
        return torch.bmm(of_scores, self.k), torch.bmm(of_scores.transpose(1, 2), self.q), of_values

    def grouped(self, x: Tensor) -> Tensor:
        """Return [b H, R l, size] of queries [N, Q, size], zero at padding."""
        x = _gathered(x, self.piece.queries, self.length)
        parts = x.view(self.count, self.length, self.heads, self.repeat, -1).permute(0, 2, 3, 1, 4)
        return parts.reshape(self.count * self.heads, self.repeat * self.length, -1)

    def ungrouped(self, x: Tensor) -> Tensor:
        """Return [b, l, Q, size] of [b H, R l, size]."""
        parts = x.view(self.count, self.heads, self.repeat, self.length, -1).permute(0, 3, 1, 2, 4)
        return parts.reshape(self.count, self.length, self.heads * self.repeat, -1)

    def unstacked(self, x: Tensor) -> Tensor:
        """Return [b, w, H, size] of [b H, w, size]."""
        return x.view(self.count, self.heads, self.width, -1).transpose(1, 2)

    def _stacked(self, x: Tensor) -> Tensor:
        x = _gathered(x, self.piece.keys, self.width)
        return x.transpose(1, 2).reshape(self.count * self.heads, self.width, -1)


class _Flash:
    """One piece by the library's kernel; see `_Written`."""

    def __init__(self, piece: ForestPiece, q: Tensor, k: Tensor, v: Tensor, _rule: Rule) -> None:
        (((self.first, self.length),), ((self.lowest, self.width),)) = piece.queries, piece.keys
        self.heads, self.repeat, self.is_causal = k.shape[1], q.shape[1] // k.shape[1], piece.places is not None
        self.q, self.k, self.v = self.grouped(q), self._stacked(k), self._stacked(v)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return outputs [1, H, R l, E] and log-sums; see `_Written`."""
        out, lse = FLASH(self.q, self.k, self.v, 0.0, self.is_causal, scale=1.0)
        return out.to(lse.dtype), lse

    def backward(self, grad: Tensor, lse: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries [1, H, R l, D], keys and values."""
        gradients: tuple[Tensor, Tensor, Tensor] = FLASH_BACKWARD(
            grad, self.q, self.k, self.v, out, lse, 0.0, self.is_causal, scale=1.0
        )
        return gradients

    def grouped(self, x: Tensor) -> Tensor:
        """Return [1, H, R l, size] of [N, Q, size], in a triangle [1, Q, l, size]."""
        part = x[self.first : self.first + self.length].transpose(0, 1)
        if self.is_causal:
            return part[None]
        return part.reshape(1, self.heads, self.repeat * self.length, -1)

    def ungrouped(self, x: Tensor) -> Tensor:
        """Return [1, l, Q, size] of what `grouped` makes."""
        return x.reshape(1, self.heads * self.repeat, self.length, -1).transpose(1, 2)

    def unstacked(self, x: Tensor) -> Tensor:
        """Return [1, w, H, size] of the gradient of `_stacked`."""
        x = x.transpose(1, 2)
        return x.unflatten(2, (self.heads, self.repeat)).sum(3) if self.is_causal else x

    def _stacked(self, x: Tensor) -> Tensor:
        part = x[self.lowest : self.lowest + self.width].transpose(0, 1)[None]
        return part.repeat_interleave(self.repeat, 1) if self.is_causal and self.repeat > 1 else part


class _Forest(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "N Q D"],
        k: Float[Tensor, "N H D"],
        v: Float[Tensor, "N H E"],
        sinks: Float[Tensor, "Q"] | None,
        pieces: tuple[ForestPiece, ...],
        rule: Rule,
    ) -> Float[Tensor, "N Q E"]:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out, lse = q.new_empty(*q.shape[:2], v.shape[2], dtype=wide), q.new_empty(q.shape[:2], dtype=wide)
        is_seen = bytearray(len(q))  # a query's first piece has nothing to merge with
        for piece in pieces:
            kernel = _kernel(piece)(piece, q, k, v, rule)
            own, own_lse = kernel.forward()
            own, own_lse = kernel.ungrouped(own), kernel.ungrouped(own_lse[..., None])
            for (first, length), part, part_lse in zip(piece.queries, own, own_lse, strict=True):
                span = slice(first, first + length)
                if not is_seen[first]:
                    out[span], lse[span] = part[:length], part_lse[:length, :, 0]
                    is_seen[span] = b"\1" * length
                else:
                    _merge(out[span], lse[span], part[:length], part_lse[:length, :, 0])
        if sinks is not None:
            whole = torch.logaddexp(lse, sinks.to(wide))
            out *= torch.exp(lse - whole)[..., None]
            lse = whole
        result = out.to(v.dtype)
        ctx.save_for_backward(q, k, v, sinks, result, lse)
        ctx.pieces, ctx.rule = pieces, rule
        return result

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "N Q E"]
    ) -> tuple[
        Float[Tensor, "N Q D"], Float[Tensor, "N H D"], Float[Tensor, "N H E"], Float[Tensor, "Q"] | None, None, None
    ]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        delta = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
        of_q, of_k, of_v = (torch.zeros(t.shape, dtype=lse.dtype, device=t.device) for t in (q, k, v))
        for piece in ctx.pieces:
            kernel = _kernel(piece)(piece, q, k, v, ctx.rule)
            given = kernel.grouped(out if piece.is_flash else delta[..., None])
            parts = kernel.backward(
                kernel.grouped(grad),
                kernel.grouped(lse[..., None]).squeeze(-1),
                given if piece.is_flash else given.squeeze(-1),
            )
            makers = (kernel.ungrouped, kernel.unstacked, kernel.unstacked)
            spans = (piece.queries, piece.keys, piece.keys)
            for total, part, make, places in zip((of_q, of_k, of_v), parts, makers, spans, strict=True):
                for (first, length), own in zip(places, make(part), strict=True):
                    total[first : first + length] += own[:length]
        of_sinks = None if sinks is None else -(torch.exp(sinks.to(lse.dtype) - lse) * delta).sum(0).to(sinks.dtype)
        return of_q.to(q.dtype), of_k.to(k.dtype), of_v.to(v.dtype), of_sinks, None, None


def _kernel(piece: ForestPiece) -> type[_Flash] | type[_Written]:
    return _Flash if piece.is_flash else _Written


def _merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Merge another piece's outputs [l, Q, E] and log-sums [l, Q] in place."""
    whole = torch.logaddexp(lse, other_lse)
    out.mul_(torch.exp(lse - whole)[..., None]).add_(other * torch.exp(other_lse - whole)[..., None])
    lse.copy_(whole)


def _gathered(x: Tensor, spans: tuple[tuple[int, int], ...], width: int) -> Tensor:
    """Return [b, width, ...] of spans of [N, ...], zero at padding."""
    if len(spans) == 1:
        first, length = spans[0]
        return x[None, first : first + length]
    places, slots = _places(spans, width)
    found = x.new_zeros(len(spans) * width, *x.shape[1:])
    return found.index_copy_(0, slots, x.index_select(0, places)).view(len(spans), width, *x.shape[1:])


@lru_cache(maxsize=64)
def _places(spans: tuple[tuple[int, int], ...], width: int) -> tuple[Tensor, Tensor]:
    places = torch.cat([torch.arange(first, first + length) for first, length in spans])
    slots = torch.cat([torch.arange(length) + row * width for row, (_, length) in enumerate(spans)])
    return places, slots


def forest_attend(
    queries: Float[Tensor, "N Q D"],
    keys: Float[Tensor, "N H D"],
    values: Float[Tensor, "N H E"],
    nodes: tuple[Node, ...],
    rule: Rule,
) -> Float[Tensor, "N Q*E"]:
    """Return each token's attention over its node's and all ancestors' tokens.

    Args:
        queries: scaled, on the CPU.
        keys: of the same tokens.
        values: likewise.
        nodes: of the forest.
        rule: window, soft cap and sinks of the layer.
    """
    longest = max(node.start + node.length for node in nodes)
    window = None if rule.window is None or rule.window >= longest else rule.window
    is_flash = window is None and rule.softcap is None and queries.shape[-1] == values.shape[-1]
    is_wide = queries.element_size() >= 4
    pieces = _pieces(nodes, is_flash, is_wide, window, queries.shape[1])
    out: Tensor = _Forest.apply(queries, keys, values, rule.sinks, pieces, Rule(None, window, rule.softcap))
    return out.flatten(1)
