"""Causal attention over packed sequences that do not see each other.

Dimension key: N = packed tokens, Q = query heads, H = key heads, D = head size, B = sequences, L = padded length.
Padding lies on the right, where a causal query never looks, so that no mask is needed for it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trinity.trainer.verl.layers import collect, spread
from trinity.trainer.verl.packing import Block, Packed

MANUAL_MAX_LENGTH = 512
MAX_PADDING_FACTOR = 1.5

_computed: list[Packed] = []  # not a context variable: a backward pass on CUDA recomputes in another thread


def is_manual(device: torch.device, longest: int) -> bool:
    """Return whether two plain products and a softmax beat the library's attention: short sequences on a CPU."""
    return device.type == "cpu" and longest <= MANUAL_MAX_LENGTH


def attend(
    queries: Float[Tensor, "N Q D"], keys: Float[Tensor, "N H D"], values: Float[Tensor, "N H D"], packed: Packed
) -> Float[Tensor, "N Q*D"]:
    """Return the attention output of each packed token over the earlier tokens of its own row."""
    if packed.piece is None:
        return _attend(queries, keys, values, packed)
    return packed.piece.attend(queries, keys, values, lambda q, k, v: _attend(q, k, v, packed))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, packed: Packed) -> Tensor:
    """Return the outputs of all packed tokens."""
    head_size = queries.shape[-1]
    longest = packed.rows.width + (packed.prefix.width if packed.prefix else 0)
    if packed.prefix is None:
        if is_manual(queries.device, longest):
            return _manual(queries * head_size**-0.5, keys, values, packed.rows)
        return _library(queries, keys, values, packed.rows)
    cut = packed.rows.start
    queries = queries * head_size**-0.5
    prompt = _manual(queries[:cut], keys[:cut], values[:cut], packed.prefix)
    prompt_keys, prompt_values = (_padded(t[:cut], packed.prefix) for t in (keys, values))
    assert packed.prefix_of_row is not None, "a packed list with shared prompts says which row has which"
    past = tuple(t.index_select(0, packed.prefix_of_row) for t in (prompt_keys, prompt_values))
    hidden = _hidden_prompt(packed, queries)
    return torch.cat([prompt, _manual(queries[cut:], keys[cut:], values[cut:], packed.rows, past=past, bias=hidden)])


def _padded(x: Tensor, block: Block) -> Tensor:
    """Return [B, L, heads, D]."""
    size = len(block.lengths) * block.width
    return spread(x, block.slots, size).view(len(block.lengths), block.width, *x.shape[1:])


def _hidden_prompt(packed: Packed, like: Tensor) -> Tensor | None:
    """Return the bias [B, P] that hides the padding of the shared prompts; None where they have none."""
    prefix = packed.prefix
    if prefix is None or prefix.slots is None or packed.prefix_of_row is None:
        return None
    lengths = torch.tensor(prefix.lengths, device=like.device)[packed.prefix_of_row]
    is_padding = torch.arange(prefix.width, device=like.device) >= lengths[:, None]
    return torch.zeros(is_padding.shape, dtype=like.dtype, device=like.device).masked_fill_(is_padding, float("-inf"))


def _manual(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block: Block,
    *,
    past: tuple[Tensor, ...] | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return attention by two products and a softmax; queries come scaled, `past` is seen by every query.

    Float32 is widened to float64, as in the engine: sums over differently padded keys then round alike.
    """
    q, k, v = (_padded(t, block) for t in (queries, keys, values))
    if past is not None:
        k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
    batch, length, num_queries, size = q.shape
    heads, width = k.shape[2], k.shape[1]
    repeat = num_queries // heads
    dtype = q.dtype
    if dtype == torch.float32:
        q, k, v = q.double(), k.double(), v.double()
    q = q.view(batch, length, heads, repeat, size).permute(0, 2, 3, 1, 4).reshape(batch * heads, repeat * length, size)
    k = k.permute(0, 2, 3, 1).reshape(batch * heads, size, width)
    v = v.transpose(1, 2).reshape(batch * heads, width, size)
    causal = torch.full((length, width), float("-inf"), dtype=q.dtype, device=q.device).triu_(width - length + 1)
    scores = torch.bmm(q, k).view(batch, heads * repeat, length, width) + causal
    if bias is not None:
        scores = scores + functional.pad(bias, (0, length))[:, None, None]
    weights = torch.softmax(scores, -1).view(batch * heads, repeat * length, width)
    out = torch.bmm(weights, v).view(batch, heads, repeat, length, size).permute(0, 3, 1, 2, 4)
    return collect(out.reshape(batch * length, num_queries * size).to(dtype), block.slots)


def _library(queries: Tensor, keys: Tensor, values: Tensor, block: Block) -> Tensor:
    """Return PyTorch's attention: padded at once where lengths are alike, else one sequence after another."""
    padded_work = len(block.lengths) * block.width**2
    if block.slots is None or padded_work <= MAX_PADDING_FACTOR * sum(n * n for n in block.lengths):
        q, k, v = (_padded(t, block).transpose(1, 2) for t in (queries, keys, values))
        out = _causal(q, k, v).transpose(1, 2)
        return collect(out.reshape(len(block.lengths) * block.width, -1), block.slots)
    pieces = []
    parts = [t.split(block.lengths) for t in (queries, keys, values)]
    for q, k, v in zip(*parts, strict=True):
        out = _causal(*(t.transpose(0, 1)[None] for t in (q, k, v)))
        pieces.append(out[0].transpose(0, 1).reshape(q.shape[0], -1))
    return torch.cat(pieces)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def packed_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention function for Hugging Face models, registered as `trinity_packed`.

    Tensors are [1, heads, N, D]; the sequences are those of the packed list being computed. Scaling other than
    1 / sqrt(D) is taken from `kwargs`.
    """
    packed = _computed[-1]
    scaling = kwargs.get("scaling")
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    if scaling is not None:
        q = q * (scaling * q.shape[-1] ** 0.5)
    out = attend(q, k, v, packed)
    return out.view(1, -1, query.shape[1], value.shape[-1]), None


def register() -> str:
    """Register `packed_attention` with transformers; return its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("trinity_packed", packed_attention)
    return "trinity_packed"


class computing:
    """While entered, `packed_attention` attends within the sequences of `packed`."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    def __enter__(self) -> None:
        _computed.append(self.packed)

    def __exit__(self, *_: object) -> None:
        _computed.pop()
