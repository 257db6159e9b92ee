"""Attention over packed rows by compiled kernels.

They serve runs that are not deterministic. They compute in float32, also for inputs in bfloat16.

Keys that several rows share are stored once: a pair of spans says which consecutive queries see which consecutive keys.

Dimension key: N = packed tokens, Q = query heads, H = key heads, D = head size, V = size of values, P = pairs of spans.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity.trainer.verl.attention_rule import Rule
from trinity.trainer.verl.compiled_layers import in_rows, rotated
from trinity.trainer.verl.packing import Block, Packed
from trinity.utils.fused.choice import uses_kernels

Pair = tuple[int, int, int, int, int]
_SIZES = 16  # head sizes must be multiples of this


def compiles(queries: Float[Tensor, "N Q D"], values: Float[Tensor, "N H V"], rule: Rule) -> bool:
    """Return whether kernels compute this attention."""
    size = queries.shape[2]
    is_plain = rule.window is None and rule.softcap is None and rule.sinks is None
    return (
        is_plain
        and size == values.shape[2]
        and size % _SIZES == 0
        and not torch.are_deterministic_algorithms_enabled()
        and uses_kernels(8 * queries.numel(), device=queries.device, dtype=queries.dtype)
    )


def pairs_of(packed: Packed, *, is_scored_only: bool = False) -> list[Pair]:
    """Return the pairs of a micro-batch; those with equal keys are adjacent.

    See `trinity.utils.fused.attention`.

    Args:
        packed: the micro-batch.
        is_scored_only: leave out the queries whose output predicts no scored token.
    """
    if packed.forest is not None:
        found = []
        for node in packed.forest:
            found.append((node.at, node.length, node.at, node.length, 0))
            if node.below:
                found.append((node.at, node.length, node.at + node.length, node.below, node.length))
    else:
        rows, prefix, of_row = list(_spans(packed.rows)), packed.prefix, packed.prefix_of_row
        prompts = [] if prefix is None else list(_spans(prefix))
        found = [(at, length, at, length, 0) for at, length in prompts + rows]
        for (at, length), prompt in zip(rows, [] if of_row is None else of_row.tolist(), strict=of_row is not None):
            found.append((*prompts[prompt], at, length, prompts[prompt][1]))
        found.sort()
    if not is_scored_only:
        return found
    runs = _runs(packed)
    return [part for pair in found for part in _parts(pair, runs)]


def _runs(packed: Packed) -> tuple[Int[np.ndarray, "R"], Int[np.ndarray, "R"]]:
    """Return the first and last places of runs of scored tokens."""
    places = np.unique(packed.sources.numpy())
    ends = np.flatnonzero(np.diff(places) > 1)
    return places[np.concatenate([[0], ends + 1])], places[np.concatenate([ends, [len(places) - 1]])]


def _parts(pair: Pair, runs: tuple[Int[np.ndarray, "R"], Int[np.ndarray, "R"]]) -> Iterator[Pair]:
    """Yield the parts of a pair whose queries are in runs."""
    key, num_keys, query, num_queries, place = pair
    firsts, lasts = runs
    begin, end = np.searchsorted(lasts, query), np.searchsorted(firsts, query + num_queries)
    for first, last in zip(firsts[begin:end].tolist(), lasts[begin:end].tolist(), strict=True):
        first, last = max(first, query), min(last, query + num_queries - 1)
        yield key, num_keys, first, last - first + 1, place + first - query


def _spans(block: Block) -> Iterator[tuple[int, int]]:
    at = block.start
    for length in block.lengths:
        yield at, length
        at += length


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "N Q D"],
        k: Float[Tensor, "N H D"],
        v: Float[Tensor, "N H D"],
        pairs: Int[Tensor, "P five"],
        scale: float,
    ) -> Float[Tensor, "N Q D"]:
        q, k, v = (in_rows(t) for t in (q, k, v))
        out, state = _outputs(q, k, v, pairs, scale)
        ctx.save_for_backward(q, k, v, out, state, pairs)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "N Q D"]
    ) -> tuple[Float[Tensor, "N Q D"], Float[Tensor, "N H D"], Float[Tensor, "N H D"], None, None]:
        *tensors, pairs = ctx.saved_tensors
        found = tuple(torch.zeros(t.shape) for t in tensors[:3])
        _add_gradients(tensors, grad, found, pairs, ctx.scale)
        of_q, of_k, of_v = (t.to(grad.dtype) for t in found)
        return of_q, of_k, of_v, None, None


class _HeadAttention(torch.autograd.Function):
    """Attention of the heads of a token [N, Q + 2 H, D].

    These are queries and keys, which are rotated, and values. Their gradients are written side by side.
    """

    @staticmethod
    def forward(
        ctx: Any,
        heads: Float[Tensor, "N all D"],
        cos: Float[Tensor, "N 1 D"],
        sin: Float[Tensor, "N 1 D"],
        pairs: Int[Tensor, "P five"],
        numbers: tuple[int, int],
        scale: float,
    ) -> Float[Tensor, "N Q D"]:
        heads, cos, sin = in_rows(heads), cos.contiguous(), sin.contiguous()
        turned = rotated(heads[:, : sum(numbers)], cos, sin)
        q, k, v = turned[:, : numbers[0]], turned[:, numbers[0] :], heads[:, sum(numbers) :]
        out, state = _outputs(q, k, v, pairs, scale)
        ctx.save_for_backward(q, k, v, out, state, pairs, cos, sin)
        ctx.numbers, ctx.scale = numbers, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "N Q D"]
    ) -> tuple[Float[Tensor, "N all D"], None, None, None, None, None]:
        *tensors, pairs, cos, sin = ctx.saved_tensors
        num_queries, num_keys = ctx.numbers
        found = torch.zeros(len(grad), num_queries + 2 * num_keys, grad.shape[2])
        _add_gradients(tensors, grad, found.split((num_queries, num_keys, num_keys), 1), pairs, ctx.scale)
        return rotated(found, cos, sin, others=num_keys, is_backward=True), None, None, None, None, None


def _outputs(q: Tensor, k: Tensor, v: Tensor, pairs: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return outputs [N, Q, D], and for each a log-sum and a sum [N Q, 2]."""
    from trinity.utils.fused import attention  # with Numba, half a second of imports
    from trinity.utils.fused.machine import like_of
    from trinity.utils.fused.rows import LOWEST

    out = torch.zeros(q.shape)
    state = torch.tensor([float(LOWEST), 0.0]).repeat(q.shape[0] * q.shape[1], 1)
    buffer = torch.empty(attention.buffer_size(q.shape[2]))
    tensors = tuple(t.data_ptr() for t in (q, k, v, out, state))
    sizes, like = (*q.shape[:2], *k.shape[1:], len(pairs)), like_of(q, k, v)
    attention.forward(tensors, _distances(q, k, v), pairs.data_ptr(), sizes, buffer.data_ptr(), scale, like)
    return out.to(q.dtype), state


def _add_gradients(
    tensors: Sequence[Tensor], grad: Tensor, found: Sequence[Tensor], pairs: Tensor, scale: float
) -> None:
    """Add the gradients of queries, keys and values to `found`.

    Args:
        tensors: queries, keys, values, and what `_outputs` returned of them.
        grad: gradient of the outputs.
        found: float32, zeros.
        pairs: as of `_outputs`.
        scale: likewise.
    """
    from trinity.utils.fused import attention
    from trinity.utils.fused.machine import like_of

    q, k, v = tensors[:3]
    grad, delta = grad.contiguous(), torch.empty(q.shape[:2])
    buffer = torch.empty(attention.buffer_size(q.shape[2]))
    attention.backward(
        tuple(t.data_ptr() for t in tensors),
        (grad.data_ptr(), delta.data_ptr()),
        tuple(t.data_ptr() for t in found),
        _distances(q, k, v, *found),
        pairs.data_ptr(),
        (*q.shape[:2], *k.shape[1:], len(pairs)),
        buffer.data_ptr(),
        scale,
        like_of(q, k, v, grad),
    )


def _distances(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride(0) for tensor in tensors)


def compiled_attend(
    queries: Float[Tensor, "N Q D"],
    keys: Float[Tensor, "N H D"],
    values: Float[Tensor, "N H D"],
    packed: Packed,
    *,
    scale: float,
    is_scored_only: bool = False,
) -> Float[Tensor, "N Q*D"]:
    """Return each packed token's attention over its row's earlier tokens.

    With `is_scored_only` it is that of scored positions, zeros elsewhere. Inputs of several data types, as autocast
    gives them, are computed in the widest.
    """
    pairs = torch.tensor(pairs_of(packed, is_scored_only=is_scored_only))
    dtype = functools.reduce(torch.promote_types, (queries.dtype, keys.dtype, values.dtype))
    out: Tensor = _Attention.apply(*(each.to(dtype) for each in (queries, keys, values)), pairs, scale)
    return out.flatten(1)


def compiled_attend_heads(
    heads: Float[Tensor, "N all D"],
    cos: Float[Tensor, "N 1 D"],
    sin: Float[Tensor, "N 1 D"],
    packed: Packed,
    *,
    numbers: tuple[int, int],
    is_scored_only: bool = False,
) -> Float[Tensor, "N _"]:
    """Return what `compiled_attend` does of heads that are not rotated yet.

    The arguments are those of `attention.attend_heads`.
    """
    pairs = torch.tensor(pairs_of(packed, is_scored_only=is_scored_only))
    out: Tensor = _HeadAttention.apply(heads, cos, sin, pairs, numbers, heads.shape[2] ** -0.5)
    return out.flatten(1)
