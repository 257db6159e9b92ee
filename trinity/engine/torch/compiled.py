"""Decoding steps by compiled kernels, for runs that are not deterministic.

A step of a small model has some sixty small operations per layer, which read and write more memory than its matrix
products. Here the matrix products are the library's, and four compiled kernels do everything between them.

Dimension key: B = rows, V = vocabulary, d = hidden size, D = head size.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.engine.sampler import RowParams
from trinity.engine.torch.fast_decoder import FastDecoder, Layer
from trinity.engine.torch.kv_cache import KVCache
from trinity.utils.fused import decoding, sampling
from trinity.utils.fused.machine import LIKE


class CompiledDecoding:
    """`decode` of a fast decoder, and the draw of its tokens.

    Args:
        decoder: its weights are float32 or bfloat16, its head size a multiple of `choice.HEAD_SIZES`.
        max_length: most keys of a row.
    """

    def __init__(self, decoder: FastDecoder, max_length: int) -> None:
        self.decoder = decoder
        self._like = LIKE[decoder.dtype]
        queries = decoder.num_query_heads // decoder.num_kv_heads
        size = decoding.buffer_size(queries, decoder.head_size, max_length + 1)
        self._buffer = torch.empty(size, dtype=torch.float32)
        self._weights = torch.empty(decoder.vocab_size, dtype=torch.float32)
        self._hidden: tuple[Tensor, Tensor] | None = None

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: KVCache, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the logits after one more token in each slot; see `Decoder`.

        `width` has no influence: no more keys are read than there are.
        """
        decoder = self.decoder
        hidden = decoder.embed[tokens]
        normed, attended = torch.empty_like(hidden), hidden.new_empty(len(tokens), decoder.query_size)
        gated = hidden.new_empty(len(tokens), decoder.config.intermediate_size)
        added: Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            self._add_norm(hidden, added, layer.input_norm, normed)
            qkv = layer.qkv.product(normed, layer.qkv_bias)
            self._attend(index, layer, qkv, attended, positions, cache)
            self._add_norm(hidden, layer.out.product(attended, layer.out_bias), layer.mlp_norm, normed)
            fused = layer.gate_up.product(normed)
            decoding.gate(fused.data_ptr(), gated.data_ptr(), *gated.shape, self._like)
            added = layer.down.product(gated)
        self._add_norm(hidden, added, decoder.norm, normed)
        return decoder.head.product(normed).float()

    def _add_norm(self, hidden: Tensor, added: Tensor | None, weight: Tensor, out: Tensor) -> None:
        decoding.add_norm(
            hidden.data_ptr(),
            0 if added is None else added.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            *hidden.shape,
            self.decoder.eps,
            self._like,
        )

    def _attend(self, index: int, layer: Layer, qkv: Tensor, out: Tensor, positions: Tensor, cache: KVCache) -> None:
        decoder, prompts = self.decoder, cache.prompt_table(len(qkv))
        keys, values = cache.keys[index], cache.values[index]
        query_norm, key_norm = layer.query_norm, layer.key_norm
        decoding.attend(
            qkv.data_ptr(),
            out.data_ptr(),
            (decoder.cos.data_ptr(), decoder.sin.data_ptr()),
            (positions.data_ptr(), cache.start.data_ptr(), cache.shift.data_ptr()),
            (0 if query_norm is None else query_norm.data_ptr(), 0 if key_norm is None else key_norm.data_ptr()),
            (keys.data_ptr(), values.data_ptr(), keys.shape[2]),
            (
                prompts.keys[index].data_ptr(),
                prompts.values[index].data_ptr(),
                prompts.lengths.data_ptr(),
                prompts.widths.data_ptr(),
            ),
            (len(qkv), decoder.num_query_heads, decoder.num_kv_heads, decoder.head_size),
            self._buffer.data_ptr(),
            decoder.eps,
            self._like,
        )

    def sample(
        self, logits: Float[Tensor, "B V"], params: RowParams, *, keys: Int[Tensor, "B"], positions: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B"], Float[Tensor, "B"]]:
        """Return one token and its logprob per row; see `sampler.sample`.

        `params` must be plain.
        """
        tokens, logprobs = torch.empty_like(positions), logits.new_empty(len(positions))
        never, not_yet = self._hidden_of(params, logits.shape[1])
        temperature, no_stop = params.temperature.contiguous(), params.no_stop.contiguous()
        logits, keys, positions = logits.contiguous(), keys.contiguous(), positions.contiguous()
        sampling.draw(
            logits.data_ptr(),
            temperature.data_ptr(),
            (keys.data_ptr(), positions.data_ptr()),
            (never.data_ptr(), not_yet.data_ptr(), no_stop.data_ptr()),
            (tokens.data_ptr(), logprobs.data_ptr()),
            (*logits.shape, params.num_tokens),
            self._weights.data_ptr(),
        )
        return tokens, logprobs

    def _hidden_of(self, params: RowParams, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Return which tokens are never drawn, and which end a response, [V]."""
        if self._hidden is None:
            never, not_yet = (torch.zeros(vocabulary, dtype=torch.bool) for _ in range(2))
            never[params.unknown_ids] = True
            not_yet[params.stop_ids] = True
            self._hidden = never, not_yet
        return self._hidden
