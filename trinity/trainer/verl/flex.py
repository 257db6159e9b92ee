"""Attention over packed sequences by PyTorch's kernels on CUDA.

Dimension key: N = packed tokens, Q = query heads, H = key heads, D = size of queries and keys, E = size of values.
Flash and flex attention read the sequences as one list. Both need memory linear in the tokens, and neither pads. Flash
attention takes plain layers and windows in 16 bits; flex attention, which compiles a kernel for the rule of the layer,
takes the rest, and lists that are a forest.
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

from trinity.trainer.prefixes import Node
from trinity.trainer.verl.attention_rule import Rule
from trinity.utils.device import is_out_of_memory
from trinity.utils.log import get_logger

logger = get_logger("trainer")

BLOCK = 128
_FLASH_MAX_SIZE = 256
_FLASH_ARGUMENTS = {"window_size", "enable_gqa", "scale"}
_TRIED = (Node(0, 0, 40, 50, -1), Node(40, 40, 30, 0, 0), Node(40, 70, 20, 0, 0))
_TOLERANCES = {torch.float32: 5e-3, torch.bfloat16: 2e-2}  # of products in TF32 and in bfloat16


def has_kernel(queries: Tensor, values: Tensor, rule: Rule) -> bool:
    """Return whether a CUDA kernel computes attention of these tensors.

    Only shapes, data types and devices of `queries` [N, Q, D] and `values` [N, H, E] matter.
    """
    if queries.device.type != "cuda":
        return False
    return _takes_flash(queries, values, rule) or flex_works(queries.device, queries.dtype)


@cache
@torch.enable_grad()  # the first to ask may be a pass that keeps no gradient
def flex_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether flex attention works here; try once, log a failure."""
    shape, reason = (BLOCK, 2, 32), "triton is not installed"
    if importlib.util.find_spec("triton") is not None:
        try:
            q, k, v = (torch.ones(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
            _flex(q, k, v, rows_as_nodes((BLOCK,)), None, compute=_compiled()).sum().backward()
            return True
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0]
    logger.warning("flex attention does not work on %s, rows are computed by slower kernels: %s", device, reason)
    return False


@cache
def forest_works(device: torch.device) -> bool:
    """Return whether flex attention computes forests here; log if not.

    A small one is computed in each data type, with its gradient, and compared with products that are written out.
    """
    if device.type != "cuda":
        return False
    for dtype, tolerance in _TOLERANCES.items():
        if not flex_works(device, dtype):
            return False
        error = _error_of_forest(device, dtype, compute=_compiled())
        if not error <= tolerance:
            logger.warning(
                "flex attention over shared prefixes is off by %g on %s in %s: nothing is shared", error, device, dtype
            )
            return False
    return True


@torch.enable_grad()
def _error_of_forest(device: torch.device, dtype: torch.dtype, *, compute: Callable[..., Any]) -> float:
    """Return the largest error of outputs and gradients of a small forest.

    It is relative to the largest value of each, and infinite if the kernel fails. No state of random numbers changes.
    """
    total, size, draw = sum(node.length for node in _TRIED), 64, torch.Generator().manual_seed(0)
    shapes = [(total, heads, size) for heads in (4, 2, 2, 4)]
    q, k, v, factors = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
    q, k, v = (each.requires_grad_() for each in (q, k, v))
    places = torch.arange(total, device=device)
    mask = _seen(_TRIED, total, None, device)(None, None, places[:, None], places[None])
    scores = torch.einsum("ihd,jhd->hij", q.float(), k.float().repeat_interleave(2, 1)) * size**-0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    wanted = torch.einsum("hij,jhd->ihd", weights, v.float().repeat_interleave(2, 1))
    try:
        found = _flex(q * size**-0.5, k, v, _TRIED, None, compute=compute)
        grads = [torch.autograd.grad((out.float() * factors).sum(), (q, k, v)) for out in (found, wanted)]
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        logger.warning("flex attention over shared prefixes fails on %s: %s", device, str(error).splitlines()[0])
        return float("inf")
    pairs = [(found.detach(), wanted.detach()), *zip(*grads, strict=True)]
    return max(float((one - other).abs().max() / other.abs().max().clamp(min=1.0)) for one, other in pairs)


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
    return _flex(queries, keys, values, rows_as_nodes(lengths), rule, compute=_compiled()).flatten(1)


def flex_attend_forest(
    queries: Float[Tensor, "N Q D"],
    keys: Float[Tensor, "N H D"],
    values: Float[Tensor, "N H E"],
    nodes: tuple[Node, ...],
    rule: Rule,
) -> Float[Tensor, "N Q*E"]:
    """Return each token's attention over its node and its ancestors.

    `queries` are scaled.
    """
    return _flex(queries, keys, values, nodes, rule, compute=_compiled()).flatten(1)


@lru_cache(maxsize=8)
def rows_as_nodes(lengths: tuple[int, ...]) -> tuple[Node, ...]:
    """Return rows that share nothing as a forest."""
    starts = accumulate(lengths, initial=0)
    return tuple(Node(0, at, length, 0, -1) for at, length in zip(starts, lengths, strict=False))


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
    nodes: tuple[Node, ...],
    rule: Rule | None,
    *,
    compute: Callable[..., Any],
) -> Tensor:
    """Return flex attention [N, Q, E]; padded to blocks, for few shapes."""
    window, softcap, sinks = (None, None, None) if rule is None else (rule.window, rule.softcap, rule.sinks)
    total = len(queries)
    padded = -(-total // BLOCK) * BLOCK
    q, k, v = (
        functional.pad(t, (0, 0, 0, 0, 0, padded - total)).transpose(0, 1)[None] for t in (queries, keys, values)
    )
    mask = _mask(nodes, padded, window, queries.device)
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
def _mask(nodes: tuple[Node, ...], padded: int, window: int | None, device: torch.device) -> flex.BlockMask:
    """Return which key each query sees; padding sees itself."""
    seen = _seen(nodes, padded, window, device)
    return flex.create_block_mask(seen, None, None, padded, padded, device=device, BLOCK_SIZE=BLOCK)


def _seen(
    nodes: tuple[Node, ...], padded: int, window: int | None, device: torch.device
) -> Callable[[Any, Any, Any, Any], Tensor]:
    """Return the function that says whether a query sees a key.

    A query sees earlier tokens of its node, and those of its ancestors, within the window: a key is seen by what
    follows it up to the end of all that is below its node. It is written as a lambda, since flex attention counts the
    arguments of a function, which wrappers of named functions hide.
    """
    rest = padded - sum(node.length for node in nodes)
    every = (*nodes, Node(0, padded - rest, rest, 0, -1))
    lengths = torch.tensor([node.length for node in every])
    ends = torch.repeat_interleave(torch.tensor([node.at + node.length + node.below for node in every]), lengths)
    shifts = torch.repeat_interleave(torch.tensor([node.start - node.at for node in every]), lengths)
    ends, positions = ends.to(device), (torch.arange(padded) + shifts).to(device)
    size = padded if window is None else window
    return lambda batch, head, query, key: (
        (query >= key) & (query < ends[key]) & (positions[query] - positions[key] < size)
    )


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex.flex_attention, dynamic=True)
