"""Causal attention over packed sequences that do not see each other.

Dimension key: N = packed tokens, Q = query heads, H = key heads, D = size of queries and keys, E = size of values,
B = sequences, L = padded length. Padding lies on the right, where a causal query never looks, so that no mask is needed
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trinity.trainer.verl.attention_rule import PLAIN, Rule
from trinity.trainer.verl.blockwise import blockwise
from trinity.trainer.verl.compiled_attention import compiled_attend, compiled_attend_heads, compiles
from trinity.trainer.verl.flex import flex_attend, flex_attend_forest, has_kernel
from trinity.trainer.verl.forest import forest_attend
from trinity.trainer.verl.layers import collect, rotate, spread
from trinity.trainer.verl.packing import Block, Packed

BLOCKWISE_MAX_LENGTH = 512
MAX_PADDING_FACTOR = 1.5
WINDOW_STEP = 1024
_ALIGNMENT = 8  # of head sizes, for the library's kernels on CUDA


def is_blockwise(device: torch.device, longest: int) -> bool:
    """Return whether plain products are fastest: short sequences on a CPU."""
    return device.type == "cpu" and longest <= BLOCKWISE_MAX_LENGTH


def attend(
    queries: Float[Tensor, "N Q D"],
    keys: Float[Tensor, "N H D"],
    values: Float[Tensor, "N H E"],
    packed: Packed,
    rule: Rule = PLAIN,
    *,
    is_scored_only: bool = False,
) -> Float[Tensor, "N Q*E"]:
    """Return each packed token's attention over its row's earlier tokens.

    With `is_scored_only` only the outputs of scored positions are read, so that others may be left out.
    """
    piece = packed.piece
    if piece is None:
        return _attend(queries, keys, values, packed, rule, is_scored_only=is_scored_only)
    own = rule.of_share(piece.index, piece.size)
    return piece.attend(queries, keys, values, lambda q, k, v: _attend(q, k, v, packed, own))


def attend_heads(
    heads: Float[Tensor, "N all D"],
    cos: Float[Tensor, "N 1 D"],
    sin: Float[Tensor, "N 1 D"],
    packed: Packed,
    *,
    numbers: tuple[int, int],
    is_scored_only: bool = False,
) -> Float[Tensor, "N _"]:
    """Return what `attend` does of heads that are not rotated yet.

    Args:
        heads: queries, keys and values of a token.
        cos: of the positions, in the data type of `heads`.
        sin: likewise, its first half negated.
        packed: the micro-batch.
        numbers: heads of queries, and of keys.
        is_scored_only: see `attend`.
    """
    if packed.piece is None and _is_compiled(heads[:, : numbers[0]], heads[:, sum(numbers) :], packed, PLAIN):
        return compiled_attend_heads(heads, cos, sin, packed, numbers=numbers, is_scored_only=is_scored_only)
    turning, values = heads.split((sum(numbers), numbers[1]), dim=1)
    queries, keys = rotate(turning, cos, sin).split(numbers, dim=1)
    return attend(queries, keys, values, packed, is_scored_only=is_scored_only)


def _is_compiled(queries: Tensor, values: Tensor, packed: Packed, rule: Rule) -> bool:
    is_shared = packed.prefix is not None or packed.forest is not None
    return (is_shared or _longest(packed) <= BLOCKWISE_MAX_LENGTH) and compiles(queries, values, rule)


def _longest(packed: Packed) -> int:
    """Return the tokens of the longest row with its prompt."""
    return packed.rows.width + (packed.prefix.width if packed.prefix else 0)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, packed: Packed, rule: Rule, *, is_scored_only: bool = False
) -> Tensor:
    """Return the outputs of all packed tokens."""
    scale, longest = queries.shape[-1] ** -0.5 if rule.scale is None else rule.scale, _longest(packed)
    if _is_compiled(queries, values, packed, rule):
        return compiled_attend(queries, keys, values, packed, scale=scale, is_scored_only=is_scored_only)
    queries = queries * scale
    if packed.forest is not None:
        attend_forest = forest_attend if queries.device.type == "cpu" else flex_attend_forest
        return attend_forest(queries, keys, values, packed.forest, rule)
    if packed.prefix is not None:
        return _with_prompts(queries, keys, values, packed, rule)
    if has_kernel(queries, values, rule):
        return flex_attend(queries, keys, values, packed.rows.lengths, rule)
    if is_blockwise(queries.device, longest) or rule.softcap is not None:
        return _by_padding(queries, keys, values, packed.rows, lambda q, k, v: _blockwise(q, k, v, rule))
    if rule.window is not None and rule.window < longest:
        return _one_by_one(queries, keys, values, packed.rows, lambda q, k, v: _windowed(q, k, v, rule))
    return _by_padding(queries, keys, values, packed.rows, lambda q, k, v: _library(q, k, v, rule.sinks))


def _with_prompts(queries: Tensor, keys: Tensor, values: Tensor, packed: Packed, rule: Rule) -> Tensor:
    """Return the outputs of prompts and rows if rows share prompts."""
    prefix, of_row = packed.prefix, packed.prefix_of_row
    assert prefix is not None and of_row is not None and rule.window is None, "plain layers share prompts"
    cut = packed.rows.start
    prompt_keys, prompt_values = (_padded(t[:cut], prefix) for t in (keys, values))
    prompt = blockwise(_padded(queries[:cut], prefix), prompt_keys, prompt_values)
    q, k, v = (_padded(t[cut:], packed.rows) for t in (queries, keys, values))
    k = torch.cat([prompt_keys.index_select(0, of_row), k], 1)
    v = torch.cat([prompt_values.index_select(0, of_row), v], 1)
    lengths = None
    if prefix.slots is not None:
        lengths = torch.tensor(prefix.lengths, device=queries.device)[of_row]
    rows = blockwise(q, k, v, past_lengths=lengths)
    return torch.cat([_collected(prompt, prefix), _collected(rows, packed.rows)])


def _padded(x: Tensor, block: Block) -> Tensor:
    """Return [B, L, heads, size]."""
    size = len(block.lengths) * block.width
    return spread(x, block.slots, size).view(len(block.lengths), block.width, *x.shape[1:])


def _collected(x: Tensor, block: Block) -> Tensor:
    """Return [n, heads * size] of the padded [B, L, heads, size]."""
    return collect(x.reshape(len(block.lengths) * block.width, -1), block.slots)


Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def _by_padding(queries: Tensor, keys: Tensor, values: Tensor, block: Block, kernel: Kernel) -> Tensor:
    """Run a kernel on all sequences at once if lengths are alike, or singly."""
    padded_work = len(block.lengths) * block.width**2
    if block.slots is None or padded_work <= MAX_PADDING_FACTOR * sum(n * n for n in block.lengths):
        return _collected(kernel(*(_padded(t, block) for t in (queries, keys, values))), block)
    return _one_by_one(queries, keys, values, block, kernel)


def _one_by_one(queries: Tensor, keys: Tensor, values: Tensor, block: Block, kernel: Kernel) -> Tensor:
    """Return a kernel's outputs, computed one sequence after another."""
    parts: Sequence[Sequence[Tensor]] = [t.split(block.lengths) for t in (queries, keys, values)]
    pieces = [kernel(q[None], k[None], v[None])[0] for q, k, v in zip(*parts, strict=True)]
    return torch.cat(pieces).flatten(1)


def _blockwise(q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
    return blockwise(q, k, v, window=rule.window, softcap=rule.softcap, sinks=rule.sinks)


def _library(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
    """Return PyTorch's causal attention [B, L, Q, E] of padded sequences.

    Queries, keys and values are [B, L, heads, size]. A sink is one more position in front that every query sees: its
    score is the queries' last entry, its value zero. Its own output is left out.
    """
    if sinks is None:
        return _scaled_dot_product(q, k, v, is_causal=True)
    size = v.shape[-1]
    q, k, v = _with_sink(q, k, v, sinks)
    out = _scaled_dot_product(functional.pad(q, (0, 0, 0, 0, 1, 0)), k, v, is_causal=True)
    return out[:, 1:, :, :size]


def _windowed(q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
    """Return windowed attention [1, L, Q, E] of one sequence, in steps."""
    window, size, pieces = rule.window, v.shape[-1], []
    assert window is not None, "asked for with a window"
    masks: dict[tuple[int, int], Tensor] = {}
    for first in range(0, q.shape[1], WINDOW_STEP):
        last, lowest = min(q.shape[1], first + WINDOW_STEP), max(0, first - window + 1)
        shape = (last - first, first - lowest)
        if shape not in masks:  # kept for the backward pass, so that equal steps share one
            masks[shape] = _window_mask(*shape, window=window, has_sink=rule.sinks is not None, device=q.device)
        step = (q[:, first:last], k[:, lowest:last], v[:, lowest:last])
        step = step if rule.sinks is None else _with_sink(*step, rule.sinks)
        pieces.append(_scaled_dot_product(*step, mask=masks[shape])[..., :size])
    return torch.cat(pieces, 1)


def _window_mask(queries: int, before: int, *, window: int, has_sink: bool, device: torch.device) -> Tensor:
    """Return [queries, keys]: whether a query sees a key.

    `before` keys lie before the first query's own.
    """
    distance = torch.arange(before, before + queries, device=device)[:, None] - torch.arange(
        before + queries, device=device
    )
    seen = (distance >= 0) & (distance < window)
    return functional.pad(seen, (1, 0), value=True) if has_sink else seen


def _with_sink(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Prepend a position that takes the weight of the sinks."""
    width = max(q.shape[-1] + 1, v.shape[-1])
    width = -(-width // _ALIGNMENT) * _ALIGNMENT
    score = sinks.to(q.dtype).view(1, 1, -1, 1).expand(*q.shape[:3], 1)
    q = functional.pad(torch.cat([q, score], -1), (0, width - q.shape[-1] - 1))
    front = functional.pad(k.new_ones(k.shape[0], 1, k.shape[2], 1), (k.shape[-1], width - k.shape[-1] - 1))
    k = torch.cat([front, functional.pad(k, (0, width - k.shape[-1]))], 1)
    v = functional.pad(v, (0, max(0, width - v.shape[-1]), 0, 0, 1, 0))
    return q, k, v


def _scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    size, missing = v.shape[-1], q.shape[-1] - v.shape[-1]
    v = functional.pad(v, (0, missing)) if missing > 0 else v  # kernels with linear memory need one size for all three
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    is_grouped = q.shape[1] != k.shape[1]
    if is_grouped and q.dtype == torch.float32 and q.device.type == "cuda":  # no kernel with linear memory does this
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        is_grouped = False
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=is_grouped, scale=1.0
    )
    return out.transpose(1, 2)[..., :size]
