"""Sampling: counter-based noise, masks, one inverse-CDF draw per row.

Dimension key: B = rows, V = vocabulary, K = candidates.

Every operation works on each row alone, so that a row's token depends neither on its place nor on its neighbours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.utils.scan import cumulative_sum

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
MAX_FLOAT64_VOCABULARY = 8192
"""Largest vocabulary whose cumulative sum is taken in float64; beyond it, memory traffic would dominate a step."""


def noise_key(seed: int, sample_id: str) -> int:
    """Return a sample's noise key: a signed 64-bit hash of seed and identity."""
    digest = hashlib.blake2b(f"{seed}\0{sample_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def uniforms(keys: Int[Tensor, "B"], positions: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """Return one float64 number in (0, 1) per row.

        z = SplitMix64 output at state key + (position + 1) * gamma
        u = (upper 52 bits of z + 1/2) / 2^52

    It is a pure function of the row's key and token position; centring excludes 0 and 1. SplitMix64: Steele, Lea, Flood
    2014, "Fast splittable pseudorandom number generators", figure 10.
    """
    state = keys + (positions + 1) * _GOLDEN
    state = (state ^ _shift_right(state, 30)) * _MIX_1
    state = (state ^ _shift_right(state, 27)) * _MIX_2
    state = state ^ _shift_right(state, 31)
    return (_shift_right(state, 12).double() + 0.5) * 2.0**-52


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters of B rows, and which of them occur at all.

    Attributes:
        temperature: [B], > 0; 1 for greedy rows.
        is_greedy: [B].
        top_k: [B]; V or more is off.
        top_p: [B]; 2 is off.
        no_stop: [B], true while a stop token may not be drawn (fewer than `min_tokens` so far).
        stop_ids: token ids that end a response.
        num_tokens: ids from here on (padding of the embedding) are never drawn.
        unknown_ids: smaller ids that the tokenizer does not know, which are not drawn either; mostly none.
        has_temperature: a temperature differs from 1.
        has_greedy: a row is greedy.
        max_top_k: the largest top_k that is on; 0 without any.
        has_top_p: a top_p is on.
        has_min: a row may be short of its minimum.
    """

    temperature: Tensor
    is_greedy: Tensor
    top_k: Tensor
    top_p: Tensor
    no_stop: Tensor
    stop_ids: Tensor
    num_tokens: int
    unknown_ids: Tensor
    has_temperature: bool
    has_greedy: bool
    max_top_k: int
    has_top_p: bool
    has_min: bool

    @property
    def is_plain(self) -> bool:
        """Whether a draw sorts no tokens and takes no maximum."""
        return not (self.has_greedy or self.max_top_k or self.has_top_p)


def sample(
    logits: Float[Tensor, "B V"], params: RowParams, *, uniform: Float[Tensor, "B"]
) -> tuple[Int[Tensor, "B"], Float[Tensor, "B"]]:
    """Return one token and its logprob per row.

    The logprob is that of the whole distribution at the row's temperature, before top-k, top-p, minimum length and
    padding remove tokens, so a forward pass at that temperature reproduces it. A greedy row takes the most probable
    token, with its logprob at temperature 1.
    """
    if params.has_temperature:
        logits = logits / params.temperature[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    kept = _keep(logprobs, params)
    probs = kept.exp()
    cdf = cumulative_sum(probs, torch.float64 if probs.shape[-1] <= MAX_FLOAT64_VOCABULARY else probs.dtype)
    total = cdf[:, -1]
    # Strictly below the total, so that a first index whose sum exceeds the target exists and has probability > 0.
    target = torch.minimum(uniform.to(cdf.dtype) * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cdf, target[:, None], right=True)[:, 0]
    if params.has_greedy:
        tokens = torch.where(params.is_greedy, kept.argmax(-1), tokens)
    tokens = _only_possible(tokens, probs, kept)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def most_probable(
    logits: Float[Tensor, "B V"], params: RowParams, count: int
) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """Return the logprobs and ids of the `count` most probable tokens per row.

    The logprobs are those of the distribution of `sample`; the draw does not depend on them.
    """
    if params.has_temperature:
        logits = logits / params.temperature[:, None]
    top = torch.log_softmax(logits, dim=-1)[:, : params.num_tokens].topk(min(count, params.num_tokens), dim=-1)
    return top.values, top.indices


def _only_possible(tokens: Tensor, probs: Tensor, kept: Tensor) -> Tensor:
    """Replace tokens of probability 0 by the most probable one.

    They occur because a parallel sum need not be monotone to the last bit. All tensors are [B] or [B, V].
    """
    tokens = tokens.clamp(max=probs.shape[-1] - 1)
    is_impossible = probs.gather(1, tokens[:, None])[:, 0] <= 0
    if tokens.device.type == "cpu" and not bool(is_impossible.any()):
        return tokens  # on other devices the test would have to wait
    return torch.where(is_impossible, kept.argmax(-1), tokens)


def _keep(logprobs: Tensor, params: RowParams) -> Tensor:
    """Return `logprobs` [B, V] with -inf at tokens that must not be drawn."""
    kept = logprobs[:, : params.num_tokens]
    if params.unknown_ids.numel():
        kept = kept.index_fill(1, params.unknown_ids, float("-inf"))
    if params.has_min:
        kept = kept.clone()
        kept[:, params.stop_ids] = kept[:, params.stop_ids].masked_fill(params.no_stop[:, None], float("-inf"))
    if params.max_top_k:
        kept = _keep_top_k(kept, params)
    if params.has_top_p:
        kept = _keep_top_p(kept, params)
    return kept


def _keep_top_k(logprobs: Tensor, params: RowParams) -> Tensor:
    top = logprobs.topk(min(params.max_top_k, logprobs.shape[-1]), dim=-1)
    is_on = params.top_k < logprobs.shape[-1]
    last = (params.top_k.clamp(max=top.values.shape[-1]) - 1)[:, None]
    is_kept = torch.zeros_like(logprobs, dtype=torch.bool)
    ranks = torch.arange(top.values.shape[-1], device=logprobs.device)
    is_kept.scatter_(1, top.indices, ranks <= last)
    return logprobs.masked_fill(~(is_kept | ~is_on[:, None]), float("-inf"))


def _keep_top_p(logprobs: Tensor, params: RowParams) -> Tensor:
    ordered, order = torch.softmax(logprobs, dim=-1).sort(dim=-1, descending=True, stable=True)
    before = cumulative_sum(ordered) - ordered
    is_kept = torch.zeros_like(logprobs, dtype=torch.bool)
    is_kept.scatter_(1, order, before < params.top_p[:, None])
    return logprobs.masked_fill(~is_kept, float("-inf"))
