"""The fast path: our own forward of Llama, Qwen2 and Qwen3, fused weights.

Dimension key: B = rows of a step, G = prompts, P = prompt tokens, T = tokens of a sequence, V = vocabulary,
d = hidden size, Q = query heads, H = key-value heads, D = head size, F = feed-forward size,
E = prompts that end in a pass, N = keys and values of all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from trinity.common.models.families import OWN, QKV_BIAS
from trinity.engine.torch.attention import NumberTypes, attend, attend_causal, hidden_after
from trinity.engine.torch.kv_cache import KVCache, Prefix
from trinity.engine.torch.pieces import CausalBiases, Piece
from trinity.engine.torch.shared_prompts import Group
from trinity.engine.torch.transfer import upload
from trinity.utils.fused.choice import HEAD_SIZES, uses_kernels
from trinity.utils.products import Weight

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_LOGIT_ROWS = 512
"""Rows of a sequence whose logits are in memory at once; [T, V] in float32 would not fit for long ones."""
_MLP_ROWS = 512
"""Tokens whose feed-forward activations are in memory at once."""


def is_fast(config: PreTrainedConfig, *, max_model_len: int) -> bool:
    """Return whether the fast path supports this model and length."""
    if config.model_type not in (*OWN, *QKV_BIAS) or config.hidden_act != "silu":
        return False
    values = config.to_dict()
    rope_type = (values.get("rope_parameters") or {}).get("rope_type", "default")
    has_window = "sliding_attention" in (values.get("layer_types") or [])
    is_plain = not values.get("mlp_bias") and not values.get("quantization_config")
    return rope_type in ROPE_TYPES and is_plain and (not has_window or values["sliding_window"] >= max_model_len)


@dataclass(frozen=True)
class Layer:
    """Weights of a layer, with fused `qkv` and `gate_up`.

    `qkv` is [(Q + 2H) D, d], `gate_up` [2F, d].
    """

    input_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Weight
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight


def rope_tables(config: PreTrainedConfig, length: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [length, D] in float32.

        rotated = x * cos + roll(x, D / 2) * sin

    The positions are 0 to `length` - 1. The first half of the sine is negated.
    """
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        size = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
        frequency = 1.0 / (rope["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float) / size))
        factor = 1.0
    else:
        frequency, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    angles = torch.arange(length, dtype=torch.float)[:, None] * frequency
    sine = angles.sin() * factor
    return torch.cat((angles, angles), -1).cos() * factor, torch.cat((-sine, sine), -1)


class FastDecoder:
    """Llama, Qwen2 or Qwen3 with fused projections; see `Decoder`.

    The cache has the weights' data type. With `is_exact` the bits of a row do not depend on other rows, and on a CPU
    products and sums of attention are wider: float64 for float32 weights, as in the trainer's attention, for prompts
    and responses of up to `EXACT_KEYS` tokens. Sums over different numbers of keys then round to the same float32, and
    rollout and training agree to the last digits. Beyond that, float64 would cost more than all other work, and float32
    products are summed block by block.
    """

    kind = "fast"
    can_share_prompts = True
    root = "model"
    """Name of the module that holds the layers."""

    def __init__(
        self,
        config: PreTrainedConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
        is_exact: bool = True,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.types = NumberTypes.of(dtype, device, is_exact=is_exact)
        self.vocab_size = int(config.vocab_size)
        self.num_query_heads = int(config.num_attention_heads)
        self.num_kv_heads = int(config.num_key_value_heads or self.num_query_heads)
        self.head_size = int(config.to_dict().get("head_dim") or config.hidden_size // self.num_query_heads)
        self.query_size = self.num_query_heads * self.head_size
        self.eps = float(config.rms_norm_eps)
        self.is_tied = bool(config.tie_word_embeddings)
        cached = 2 * config.num_hidden_layers * self.num_kv_heads * self.head_size
        self.kv_bytes_per_token = cached * torch.empty((), dtype=dtype).element_size()
        # Same data type as the activations: a float32 table would promote bfloat16 queries and keys.
        self.cos, self.sin = (t.to(device, dtype) for t in rope_tables(config, max_model_len))
        is_served = not is_exact and self.head_size % HEAD_SIZES == 0
        self.is_compiled = is_served and uses_kernels(self._num_elements(), device=device, dtype=dtype)
        self.embed = self._new(self.vocab_size, config.hidden_size)
        self.head = (
            Weight(self.embed, is_shared=True, is_compiled=self.is_compiled)
            if self.is_tied
            else self._new_weight(self.vocab_size, config.hidden_size)
        )
        self.norm = self._new(config.hidden_size)
        self.layers = [self._new_layer() for _ in range(config.num_hidden_layers)]
        targets = self.targets().values()
        self.weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in targets)

    def _num_elements(self) -> int:
        """Return the number of elements of all matrices."""
        config, vectors = self.config, 2 * (self.num_query_heads + self.num_kv_heads) * self.head_size
        of_layer = config.hidden_size * (vectors + 3 * config.intermediate_size)
        of_tokens = config.hidden_size * self.vocab_size
        return int(of_layer * config.num_hidden_layers + of_tokens * (1 if self.is_tied else 2))

    def _new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _new_weight(self, *shape: int) -> Weight:
        return Weight(self._new(*shape), is_compiled=self.is_compiled)

    def _new_layer(self) -> Layer:
        config, heads = self.config, self.num_query_heads + 2 * self.num_kv_heads
        has_bias = config.model_type in QKV_BIAS
        has_out_bias = not has_bias and bool(config.attention_bias)
        has_norm = config.model_type == "qwen3"
        return Layer(
            input_norm=self._new(config.hidden_size),
            qkv=self._new_weight(heads * self.head_size, config.hidden_size),
            qkv_bias=self._new(heads * self.head_size) if has_out_bias or has_bias else None,
            query_norm=self._new(self.head_size) if has_norm else None,
            key_norm=self._new(self.head_size) if has_norm else None,
            out=self._new_weight(config.hidden_size, self.num_query_heads * self.head_size),
            out_bias=self._new(config.hidden_size) if has_out_bias else None,
            mlp_norm=self._new(config.hidden_size),
            gate_up=self._new_weight(2 * config.intermediate_size, config.hidden_size),
            down=self._new_weight(config.hidden_size, config.intermediate_size),
        )

    def targets(self) -> Mapping[str, Tensor]:
        """Return the weights by Hugging Face name, as views into fused tensors.

        They are to be read and written before the next pass.
        """
        targets = {f"{self.root}.embed_tokens.weight": self.embed, f"{self.root}.norm.weight": self.norm}
        head = self.head.plain()
        if not self.is_tied:
            targets["lm_head.weight"] = head
        for index, layer in enumerate(self.layers):
            for name, tensor in self._layer_targets(layer).items():
                targets[f"{self.root}.layers.{index}.{name}"] = tensor
        return targets

    def _layer_targets(self, layer: Layer) -> dict[str, Tensor]:
        sizes = [self.num_query_heads * self.head_size] + 2 * [self.num_kv_heads * self.head_size]
        targets = {
            "input_layernorm.weight": layer.input_norm,
            "self_attn.o_proj.weight": layer.out.plain(),
            "post_attention_layernorm.weight": layer.mlp_norm,
            "mlp.down_proj.weight": layer.down.plain(),
        }
        targets |= zip(("mlp.gate_proj.weight", "mlp.up_proj.weight"), layer.gate_up.plain().chunk(2), strict=True)
        projections = [f"self_attn.{name}_proj" for name in "qkv"]
        targets |= zip((f"{name}.weight" for name in projections), layer.qkv.plain().split(sizes), strict=True)
        if layer.qkv_bias is not None:
            targets |= zip((f"{name}.bias" for name in projections), layer.qkv_bias.split(sizes), strict=True)
        if layer.out_bias is not None:
            targets["self_attn.o_proj.bias"] = layer.out_bias
        if layer.query_norm is not None and layer.key_norm is not None:
            targets |= {"self_attn.q_norm.weight": layer.query_norm, "self_attn.k_norm.weight": layer.key_norm}
        return targets

    def optional_names(self) -> frozenset[str]:
        """Return `lm_head.weight` for tied embeddings, which may list it twice."""
        return frozenset({"lm_head.weight"}) if self.is_tied else frozenset()

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        # In float32 step by step as in the trainer: a fused kernel rounds differently.
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * weight

    def _qkv(self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [..., Q, D] and keys, and values [..., H, D].

        `hidden` is [..., d]; `cos` and `sin` are [..., 1, D].
        """
        fused = layer.qkv.product(self._rms_norm(hidden, layer.input_norm), layer.qkv_bias)
        heads = fused.view(*hidden.shape[:-1], -1, self.head_size)
        rotated, values = heads.split((self.num_query_heads + self.num_kv_heads, self.num_kv_heads), dim=-2)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = rotated.split((self.num_query_heads, self.num_kv_heads), dim=-2)
            queries = self._rms_norm(queries, layer.query_norm)
            rotated = torch.cat((queries, self._rms_norm(keys, layer.key_norm)), dim=-2)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self.head_size // 2, -1), sin)
        queries, keys = rotated.split((self.num_query_heads, self.num_kv_heads), dim=-2)
        return queries, keys, values

    def _after_attention(self, layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + layer.out.product(attended, layer.out_bias)
        gate, up = layer.gate_up.product(self._rms_norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return hidden + layer.down.product(functional.silu(gate).mul_(up))

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.head.product(self._rms_norm(hidden, self.norm)).float()

    def _forward(self, tokens: Tensor, last: Tensor | None = None) -> tuple[Tensor, Prefix]:
        """Return the last hidden states [G, P, d] of prompts, and the cache.

        With `last` the states are those at these positions, [G, d]; without it the cache is empty.
        """
        groups, length = tokens.shape
        hidden = self.embed[tokens]
        cos, sin = self.cos[:length, None], self.sin[:length, None]
        kept = Prefix([], [])
        for layer in self.layers:
            queries, keys, values = (t.transpose(1, 2) for t in self._qkv(layer, hidden, cos, sin))
            keys, values = keys.contiguous(), values.contiguous()
            if last is not None:
                kept.keys.append(keys)
                kept.values.append(values)
                if layer is self.layers[-1]:
                    return self._last_layer(layer, hidden, queries, kept, last), kept
            attended = attend_causal(queries, keys, values, self.types)
            attended = attended.transpose(1, 2).reshape(groups, length, -1)
            hidden = self._mlp_by_parts(layer, hidden, attended)
        return hidden, kept

    def new_cache(self, num_slots: int, max_length: int, *, is_fixed: bool) -> KVCache:
        """Return the slots' cache; see `Decoder`."""
        return KVCache(num_slots, max_length, is_fixed=is_fixed)

    def _mlp_by_parts(self, layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return a layer's output by parts, which limits activation memory."""
        rows, inputs = hidden.flatten(0, -2), attended.flatten(0, -2)
        if len(rows) <= _MLP_ROWS:
            return self._after_attention(layer, hidden, attended)
        parts = zip(rows.split(_MLP_ROWS), inputs.split(_MLP_ROWS), strict=True)
        return torch.cat([self._after_attention(layer, *part) for part in parts]).view_as(hidden)

    def _last_layer(self, layer: Layer, hidden: Tensor, queries: Tensor, kept: Prefix, last: Tensor) -> Tensor:
        """Return the last layer's output [G, d] at the positions `last` only."""
        rows = torch.arange(len(last), device=last.device)
        bias = hidden_after(last + 1, kept.length, self.types.wide)
        attended = attend(
            self._grouped(queries[rows, :, last]), kept.keys[-1], kept.values[-1], bias=bias, types=self.types
        )
        return self._after_attention(layer, hidden[rows, last], self._joined(attended.out))

    def prefill(self, tokens: Int[Tensor, "G P"], last: Int[Tensor, "G"]) -> tuple[Float[Tensor, "G V"], Prefix]:
        """Return the logits after `last` of each prompt, and the cache."""
        hidden, prefix = self._forward(tokens, last)
        return self._logits(hidden), prefix

    def new_states(self, length: int) -> Float[Tensor, "N H P D"]:
        """Return memory for keys and values; see `ExtendingDecoder`."""
        return self._new(2 * len(self.layers), self.num_kv_heads, length, self.head_size)

    def extend(
        self, pieces: Sequence[Piece], *, num_tokens: int | None = None, num_ends: int | None = None
    ) -> Float[Tensor, "E V"]:
        """Compute pieces of prompts in one pass; see `ExtendingDecoder`."""
        sizes = [len(piece.tokens) for piece in pieces]
        filled = sum(sizes)
        hidden, cos, sin = self._inputs(pieces, padding=[0] * ((num_tokens or filled) - filled))
        biases = CausalBiases(self.num_query_heads // self.num_kv_heads, self.types, self.device)
        for index, layer in enumerate(self.layers[:-1]):
            queries, keys, values = self._qkv(layer, hidden, cos, sin)
            attended = torch.zeros_like(queries)
            parts = [tensor[:filled].split(sizes) for tensor in (queries, keys, values, attended)]
            for piece, _, key, value, _ in zip(pieces, *parts, strict=True):
                piece.write(index, key, value)
            for piece, query, _, _, own in zip(pieces, *parts, strict=True):
                own.copy_(piece.attended(index, query, biases))
            hidden = self._mlp_by_parts(layer, hidden, attended.flatten(1))
        queries, keys, values = self._qkv(self.layers[-1], hidden, cos, sin)
        for piece, key, value in zip(pieces, *(t[:filled].split(sizes) for t in (keys, values)), strict=True):
            piece.write(len(self.layers) - 1, key, value)
        return self._ends(pieces, hidden, queries, num_ends)

    def _inputs(self, pieces: Sequence[Piece], *, padding: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the embeddings [T, d] of a pass, and its rotations [T, 1, D]."""
        place = upload([p for piece in pieces for p in range(piece.start, piece.end)] + padding, self.device)
        hidden = self.embed[upload([token for piece in pieces for token in piece.tokens] + padding, self.device)]
        return hidden, self.cos[place][:, None], self.sin[place][:, None]

    def _ends(self, pieces: Sequence[Piece], hidden: Tensor, queries: Tensor, num_ends: int | None) -> Tensor:
        """Return the logits [E, V] after the last token of each prompt that ends.

        They are computed as `num_ends` rows, so that their number does not depend on the prompts.
        """
        rows, attended, offset = [], [], 0
        for piece in pieces:
            if piece.last is not None:
                rows.append(offset + piece.last - piece.start)
                attended.append(piece.attended_last(len(self.layers) - 1, queries[rows[-1]], self.types))
            offset += len(piece.tokens)
        if not rows:
            return queries.new_zeros(0, self.vocab_size, dtype=torch.float32)
        missing = (num_ends or len(rows)) - len(rows)
        place = upload(rows + [0] * missing, self.device)
        inputs = functional.pad(torch.stack(attended).to(self.dtype).flatten(1), (0, 0, 0, missing))
        return self._logits(self._after_attention(self.layers[-1], hidden[place], inputs))[: len(rows)]

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: KVCache, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the logits after one more token in each slot; see `Decoder`."""
        return self.step(tokens, positions, cache=cache, width=width, groups=cache.groups())

    def step(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: KVCache, width: int, groups: list[Group]
    ) -> Float[Tensor, "B V"]:
        """Return the logits after one more token, without waiting for a device."""
        num_rows = len(tokens)
        rows = torch.arange(num_rows, device=tokens.device)
        own = positions - cache.start[:num_rows]
        hidden = self.embed[tokens]
        place = positions + cache.shift[:num_rows]
        cos, sin = self.cos[place][:, None], self.sin[place][:, None]
        bias = hidden_after(own + 1, width, self.types.wide)
        for index, layer in enumerate(self.layers):
            queries, keys, values = self._qkv(layer, hidden, cos, sin)
            cache.keys[index][rows, :, own] = keys
            cache.values[index][rows, :, own] = values
            queries = self._grouped(queries)
            past = (t[index][:num_rows, :, :width] for t in (cache.keys, cache.values))
            attended = attend(queries, *past, bias=bias, types=self.types, is_merged=bool(groups))
            for group in groups:
                of_prompts = attend(
                    group.spread(queries),
                    group.keys[index],
                    group.values[index],
                    bias=group.bias,
                    types=self.types,
                    is_merged=True,
                )
                attended = group.joined(attended, of_prompts)
            hidden = self._after_attention(layer, hidden, self._joined(attended.out))
        return self._logits(hidden)

    def _grouped(self, queries: Tensor) -> Tensor:
        """Return queries [B, Q, D] as [B, H, Q / H, D], by key head."""
        return queries.view(len(queries), self.num_kv_heads, -1, self.head_size)

    def _joined(self, attended: Tensor) -> Tensor:
        """Return attention [B, H, Q / H, D] as [B, Q D], in the weights' type."""
        return attended.to(self.dtype).flatten(1)

    def sequence_logprobs(self, tokens: Int[Tensor, "T"], temperature: float) -> Float[Tensor, "T-1"]:
        """Return the logprob of each token but the first; see `Decoder`."""
        hidden = self._forward(tokens[None])[0][0, :-1]
        pieces = []
        for start in range(0, len(hidden), _LOGIT_ROWS):
            logits = self._logits(hidden[start : start + _LOGIT_ROWS]) / temperature
            wanted = tokens[1 + start : 1 + start + len(logits)]
            pieces.append(torch.log_softmax(logits, -1).gather(1, wanted[:, None])[:, 0])
        return torch.cat(pieces)
