"""Attention over cached keys by PyTorch's fused kernels.

They also return the log-sum-exps that are needed to merge parts.

Dimension key: A = products at once, H = key-value heads, M = queries of one product, W = keys, D = head size,
S = splits of the keys.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

_TILE_QUERIES = 64
"""Queries of one thread block of the kernel."""
_LEAST_KEYS = 256
"""Least keys of a split: with fewer, merging would cost more than the kernel."""


def fused_attention(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, *, num_blocks: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return attention [A, H, M, D] and log-sum-exp [A, H, M, 1], float32.

        out = softmax(queries keys^T / sqrt(D) + bias) values

    The kernel walks over the keys in one thread block for each product and head. If these are fewer than the device can
    run at once, the keys are split and the splits are merged.

    Args:
        queries: [A, H, M, D], in the data type of keys and values, not scaled.
        keys: [A, H, W, D].
        values: likewise.
        bias: [A, 1, 1, W] or [A, 1, M, W], added to the scores; at least one key of each query must be visible. With
            one for each query the keys are not split, so that the bits do not depend on how the keys lie in memory.
        num_blocks: thread blocks that the device can run at once; None: as the device has.
    """
    wanted = _num_blocks(queries.device) if num_blocks is None else num_blocks
    splits = 1 if bias is not None and bias.shape[2] > 1 else _num_splits(queries, keys, wanted)
    batch, heads, size, width = queries.shape
    if splits > 1:
        queries = queries.unsqueeze(2).expand(-1, -1, splits, -1, -1).reshape(batch, heads * splits, size, width)
        keys, values = (t.unflatten(2, (splits, -1)).flatten(1, 2) for t in (keys, values))
        if bias is not None:
            bias = bias.view(batch, 1, splits, 1, -1).expand(-1, heads, -1, -1, -1).flatten(1, 2)
    out, lse = _kernel(queries, keys, values, bias)
    if splits > 1:
        lse = lse.view(batch, heads, splits, size, 1)
        whole = lse.logsumexp(2)
        weights = (lse - whole.unsqueeze(2)).exp()
        out, lse = (out.view(batch, heads, splits, size, width).float() * weights).sum(2), whole
    return out.float(), lse


def _kernel(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return attention and log-sum-exp of one kernel call."""
    size = queries.shape[2]
    if bias is not None:
        bias = _aligned(bias.to(queries.dtype)).expand(-1, queries.shape[1], size, -1)
    scale = queries.shape[-1] ** -0.5
    if queries.device.type == "cuda":
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            queries, keys, values, bias, True, 0.0, False, scale=scale
        )
        return out, lse.narrow(2, 0, size).unsqueeze(-1)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, 0.0, False, attn_mask=bias, scale=scale
    )
    return out, lse.unsqueeze(-1)


def _aligned(bias: Tensor) -> Tensor:
    """Return the bias with rows aligned to 16 elements, as the kernel needs."""
    width = bias.shape[-1]
    return bias if width % 16 == 0 else torch.nn.functional.pad(bias, (0, -width % 16))[..., :width]


def _num_splits(queries: Tensor, keys: Tensor, wanted: int) -> int:
    """Return the splits, a power of two; 1 for keys inside wider tensors."""
    batch, heads, width, size = keys.shape
    blocks = batch * heads * -(-queries.shape[2] // _TILE_QUERIES)
    splits = 1
    is_whole = keys.stride(1) == width * size
    while is_whole and blocks * splits < wanted and width % (32 * splits) == 0 and width // (2 * splits) >= _LEAST_KEYS:
        splits *= 2
    return splits


@functools.cache
def _num_blocks(device: torch.device) -> int:
    """Return how many thread blocks the device should have at once."""
    if device.type != "cuda":
        return 1
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)
