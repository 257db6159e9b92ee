"""Attention over cached keys: a row's own, and those of a shared prompt.

Dimension key: A = products at once, H = key-value heads, M = queries of one product (query heads of a key head, times
the rows that share the keys), W = keys, D = head size, G = prompts, Q = query heads, P = prompt tokens,
R = some of the A, T = some of the W.

Attention over two disjoint sets of keys is exactly

    lse = log(exp(lse_1) + exp(lse_2)),  out = exp(lse_1 - lse) out_1 + exp(lse_2 - lse) out_2

where out_i is attention over set i, and lse_i the log-sum-exp of its scores (Dao et al. 2022, "FlashAttention", section
3.1). So a prompt is multiplied once for all rows that share it. Keys are taken in blocks of a fixed size, so the bits
of a row do not depend on how many keys other rows have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from trinity.engine.torch.library_attention import fused_attention

EXACT_KEYS = 512
"""Number of keys multiplied in the wide data type; sums over different numbers of keys then round alike."""
_BLOCK = 1024
_SCORES = 1 << 22
"""Most scores of one block where bits are not exact: a block that holds all keys needs no copies of parts of them."""
_TILE = 1 << 19
"""Elements of keys widened at once: they stay in the processor's cache between conversion and product."""
_HIDDEN = -1e30  # not -inf: a block of hidden keys only must give finite numbers, whose weight is then 0


@dataclass(frozen=True)
class NumberTypes:
    """Data types of attention.

    Attributes:
        wide: type of sums over blocks, and of products of the first `EXACT_KEYS` keys where bits are exact.
        narrow: type of the other products.
        is_exact: the bits of a row do not depend on other rows.
    """

    wide: torch.dtype
    narrow: torch.dtype
    is_exact: bool = True

    @classmethod
    def of(cls, dtype: torch.dtype, device: torch.device, *, is_exact: bool = True) -> NumberTypes:
        """Return the types for weights of `dtype`.

        Products and sums are float32, with two exceptions on a CPU. If `is_exact`, float32 weights have float64 ones
        (products of the first `EXACT_KEYS` keys only). If not, products have the data type of the weights, as in
        training.
        """
        if device.type != "cpu":
            return cls(torch.float32, torch.float32, is_exact)
        if is_exact:
            return cls(torch.float64 if dtype == torch.float32 else torch.float32, torch.float32)
        return cls(torch.float32, dtype, is_exact)

    def for_keys(self, num_keys: int) -> NumberTypes:
        """Return the types for that many keys of one pass."""
        return self if num_keys <= EXACT_KEYS or not self.is_exact else replace(self, wide=self.narrow)


@dataclass(frozen=True)
class Part:
    """Attention over some of the keys.

    Attributes:
        out: [A, H, M, D], in the wide data type.
        lse: [A, H, M, 1], logarithm of the sum of the exponentials of the scores.
    """

    out: Tensor
    lse: Tensor

    def merged_at(self, rows: Int[Tensor, "R"], other: Part) -> Part:
        """Return this part with further keys for the products `rows`.

        `other` has one product for each of `rows`.
        """
        merged = Part(self.out[rows], self.lse[rows]).merged(other)
        return Part(self.out.index_copy(0, rows, merged.out), self.lse.index_copy(0, rows, merged.lse))

    def merged(self, other: Part) -> Part:
        """Return attention over the keys of both parts.

            lse = log(exp(lse_1) + exp(lse_2)),  out = exp(lse_1 - lse) out_1 + exp(lse_2 - lse) out_2

        See the module. A part of weight 0 changes no bit of the other.
        """
        top = torch.maximum(self.lse, other.lse)
        own, further = (self.lse - top).exp_(), (other.lse - top).exp_()
        total = own + further
        out = (self.out * own).addcmul_(other.out, further).div_(total)
        return Part(out, total.log_().add_(top))


def hidden_after(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return the bias [A, 1, 1, width] that hides all but `lengths` [A] keys."""
    is_hidden = torch.arange(width, device=lengths.device) >= lengths[:, None]
    bias = torch.zeros(is_hidden.shape, dtype=dtype, device=lengths.device)
    return bias.masked_fill_(is_hidden, _HIDDEN)[:, None, None]


def whole_blocks(num_keys: int) -> int:
    """Return `num_keys` rounded up to whole blocks.

    On a CPU, attention gives bitwise identical results with the hidden keys that this adds.
    """
    return EXACT_KEYS + max(0, -(-(num_keys - EXACT_KEYS) // _BLOCK)) * _BLOCK


def attend(
    queries: Float[Tensor, "A H M D"],
    keys: Float[Tensor, "A H W D"],
    values: Float[Tensor, "A H W D"],
    *,
    bias: Tensor | None,
    types: NumberTypes,
    is_merged: bool = False,
) -> Part:
    """Return attention over cached keys.

        out = softmax(queries keys^T / sqrt(D) + bias) values

    On CUDA, and for float32 keys where bits need not be exact, it uses a fused kernel; otherwise it takes two products
    per block. A CPU's fused kernel is as fast for float32 only.

    Args:
        queries: in the weights' data type, not scaled yet.
        keys: in any data type; at most one tile of them is converted at a time.
        values: likewise.
        bias: added to the scores, [A, 1, 1, W]; or [A, 1, M, T] with one for each query, of the last T keys. None adds
            nothing.
        types: data types of the products.
        is_merged: the result will be merged with further keys; otherwise `lse` may be a copy of `out`.
    """
    if queries.device.type == "cuda" or (not types.is_exact and keys.dtype == torch.float32):
        if bias is not None and bias.shape[-1] < keys.shape[2]:
            bias = functional.pad(bias, (keys.shape[2] - bias.shape[-1], 0))
        return Part(*fused_attention(queries, keys, values, bias))
    queries = _scaled(queries, types.wide)
    num_rows = max(1, _TILE // keys[0, :, :EXACT_KEYS].numel())
    if keys.dtype == types.wide or not types.is_exact or num_rows >= len(keys):
        return _attend(queries, keys, values, bias, types, is_merged)
    tiles = zip(*(t.split(num_rows) for t in (queries, keys, values)), strict=True)
    biases = [None] * len(keys) if bias is None else bias.split(num_rows)
    parts = [_attend(q, k, v, b, types, is_merged) for (q, k, v), b in zip(tiles, biases, strict=False)]
    return Part(torch.cat([part.out for part in parts]), torch.cat([part.lse for part in parts]))


def _scaled(queries: Tensor, wide: torch.dtype) -> Tensor:
    """Return queries / sqrt(D); float32 is scaled first, as in the trainer."""
    scale = queries.shape[-1] ** -0.5
    return (queries * scale).to(wide) if queries.dtype == torch.float32 else queries.to(wide) * scale


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, types: NumberTypes, is_merged: bool
) -> Part:
    width = keys.shape[2]
    done: Part | None = None
    block = _BLOCK if types.is_exact else max(_BLOCK, _SCORES // queries[..., 0].numel())
    start, end = 0, min(EXACT_KEYS if types.is_exact else block, width)
    while start < end:
        dtype = types.wide if start == 0 and types.is_exact else types.narrow
        scores = torch.matmul(queries.to(dtype), keys[:, :, start:end].to(dtype).transpose(-1, -2))
        scores = scores if types.is_exact else scores.float()
        if bias is not None:
            seen = width - bias.shape[-1]  # keys before those of the bias
            first = max(start, seen)
            if first < end:
                scores[..., first - start :].add_(bias[..., first - seen : end - seen])
        weights = torch.softmax(scores, -1)
        out = torch.matmul(weights.to(dtype), values[:, :, start:end].to(dtype)).to(types.wide)
        if end == width and done is None and not is_merged:
            return Part(out, out)
        lse = (scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log_()).to(types.wide)
        part = Part(out, lse)
        done = part if done is None else done.merged(part)
        start, end = end, min(end + block, width)
    assert done is not None, "there is a key"
    return done


def attend_causal(
    queries: Float[Tensor, "G Q P D"],
    keys: Float[Tensor, "G H P D"],
    values: Float[Tensor, "G H P D"],
    types: NumberTypes,
) -> Float[Tensor, "G Q P D"]:
    """Return causal attention in the queries' data type.

        out = softmax(queries keys^T / sqrt(D), over keys up to the query's position) values

    Memory grows with P, not with its square. On a CPU, up to `EXACT_KEYS` tokens are computed in the wide data type.
    """
    dtype, (length, size) = queries.dtype, queries.shape[2:]
    scale = size**-0.5
    if queries.device.type == "cpu" and (length <= EXACT_KEYS or dtype == torch.float32):
        wide = types.wide if length <= EXACT_KEYS else dtype
        queries, keys, values, scale = _scaled(queries, wide), keys.to(wide), values.to(wide), 1.0
    is_grouped = queries.shape[1] != keys.shape[1]
    attended = functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=length > 1, enable_gqa=is_grouped, scale=scale
    )
    return attended.to(dtype)
