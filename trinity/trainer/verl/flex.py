"""Attention over packed sequences by PyTorch's kernels on CUDA.

Dimension key: N = packed tokens, Q = query heads, H = key heads, D = size of queries and keys, E = size of values.
Flash and flex attention read the sequences as one list. Both need memory linear in the tokens, and neither pads. Flash
attention takes plain layers and windows in 16 bits; flex attention, which compiles a kernel for the rule of the layer,
takes the rest.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from trinity.trainer.verl.attention_rule import Rule
from trinity.utils.device import is_out_of_memory
from trinity.utils.log import get_logger

logger = get_logger("trainer")

BLOCK = 128
_FLASH_MAX_SIZE = 256
_FLASH_ARGUMENTS = {"window_size", "enable_gqa", "scale"}


def has_kernel(queries: Tensor, values: Tensor, rule: Rule) -> bool:
    """Return whether a CUDA kernel computes attention of these tensors.

    Only shapes, data types and devices of `queries` [N, Q, D] and `values` [N, H, E] matter.
    """
    if queries.device.type != "cuda":
        return False
    return _takes_flash(queries, values, rule) or flex_works(queries.device, queries.dtype)


@cache
def flex_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether flex attention works here; try once, log a failure."""
    shape, reason = (BLOCK, 2, 32), "triton is not installed"
    if importlib.util.find_spec("triton") is not None:
        try:
            q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
            _flex(q, k, v, (BLOCK,), None, compute=_compiled()).sum().backward()
            return True
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0]
    logger.warning("flex attention does not work on %s, rows are computed by slower kernels: %s", device, reason)
    return False


def flex_attend(
    queries: Float[Tensor, "N Q D"],
    keys: Float[Tensor, "N H D"],
    values: Float[Tensor, "N H E"],
    lengths: tuple[int, ...],
    rule: Rule,
) -> Float[Tensor, "N Q*E"]:
    """Return attention in packed sequences of `lengths`; queries are scaled."""
    if _takes_flash(queries, values, rule):
        return _flash(queries, keys, values, lengths, rule.window).flatten(1)
    return _flex(queries, keys, values, lengths, rule, compute=_compiled()).flatten(1)


def _takes_flash(queries: Tensor, values: Tensor, rule: Rule) -> bool:
    if rule.softcap is not None or rule.sinks is not None:
        return False
    size = queries.shape[-1]
    is_short = queries.dtype in (torch.bfloat16, torch.float16)
    return is_short and values.shape[-1] == size <= _FLASH_MAX_SIZE and size % 8 == 0 and _flash_kernel() is not None


@cache
def _flash_kernel() -> Callable[..., Any] | None:
    """Return PyTorch's varlen kernel if it knows windows and grouped heads."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if inspect.signature(varlen_attn).parameters.keys() >= _FLASH_ARGUMENTS else None


def _flash(queries: Tensor, keys: Tensor, values: Tensor, lengths: tuple[int, ...], window: int | None) -> Tensor:
    kernel = _flash_kernel()
    assert kernel is not None, "asked for where there is one"
    ends, longest = _ends(lengths, queries.device), max(lengths)
    sides = (-1, 0) if window is None else (window - 1, 0)
    is_grouped = queries.shape[1] != keys.shape[1]
    arguments = {"scale": 1.0, "window_size": sides, "enable_gqa": is_grouped}
    out: Tensor = kernel(queries, keys.contiguous(), values.contiguous(), ends, ends, longest, longest, **arguments)
    return out


@lru_cache(maxsize=4)
def _ends(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the start of each sequence and the end of the last: int32."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _flex(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: tuple[int, ...],
    rule: Rule | None,
    *,
    compute: Callable[..., Any],
) -> Tensor:
    """Return flex attention [N, Q, E]; padded to blocks, for few shapes."""
    window, softcap, sinks = (None, None, None) if rule is None else (rule.window, rule.softcap, rule.sinks)
    total = sum(lengths)
    padded = -(-total // BLOCK) * BLOCK
    q, k, v = (
        functional.pad(t, (0, 0, 0, 0, 0, padded - total)).transpose(0, 1)[None] for t in (queries, keys, values)
    )
    mask = _mask(lengths, padded, window, queries.device)
    score = None if softcap is None else _capped(softcap)
    wanted = flex.AuxRequest(lse=True)
    is_grouped = queries.shape[1] != keys.shape[1]
    out, extra = compute(q, k, v, score_mod=score, block_mask=mask, scale=1.0, enable_gqa=is_grouped, return_aux=wanted)
    if sinks is not None:  # the weights sum to 1 with the sink's, so those of the keys shrink
        share = torch.sigmoid(extra.lse - sinks.float()[None, :, None])
        out = out * share[..., None].to(out.dtype)
    return out[0].transpose(0, 1)[:total]


@cache
def _capped(cap: float) -> Callable[..., Tensor]:
    return lambda score, batch, head, query, key: cap * torch.tanh(score / cap)


@lru_cache(maxsize=8)
def _mask(lengths: tuple[int, ...], padded: int, window: int | None, device: torch.device) -> flex.BlockMask:
    """Return which key each query sees; padding sees itself.

    A query sees earlier tokens of its own sequence, within the window. It is written as a lambda, since flex
    attention counts the arguments of a function, which wrappers of named functions hide.
    """
    row = torch.repeat_interleave(torch.tensor([*lengths, padded - sum(lengths)]))
    row = row.to(device) if row.device != device else row

    size = padded if window is None else window
    seen = lambda batch, head, query, key: (row[query] == row[key]) & (query >= key) & (query - key < size)  # noqa: E731
    return flex.create_block_mask(seen, None, None, padded, padded, device=device, BLOCK_SIZE=BLOCK)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex.flex_attention, dynamic=True)
