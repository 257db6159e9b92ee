"""Decoders: forward passes from packed tokens to hidden states.

Our own serves the common families, Hugging Face's forward the rest.

Dimension key: N = packed tokens of this rank, n = those of which it holds the residual stream, m = its scored positions
(all, unless ranks share a sequence), d = hidden size, D = head size, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.common.models.families import OWN
from trinity.common.models.vision import is_vision, language_config
from trinity.trainer.verl.attention import attend_heads
from trinity.trainer.verl.hf_decoder import HFPackedDecoder, Without
from trinity.trainer.verl.layer_maps import LayerMaps
from trinity.trainer.verl.layers import add_rms_norm, rms_norm, swiglu
from trinity.trainer.verl.output_layer import OutputLayer
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.parallel.pipeline import Stages
from trinity.trainer.verl.parallel.tensor import TensorGroup, check_matrices, held
from trinity.trainer.verl.vision import VisionPart
from trinity.utils.log import get_logger

logger = get_logger("trainer")

HEADS = ("ForCausalLM", "ForTokenClassification")  # heads on top of the same layers


@runtime_checkable
class PackedDecoder(Protocol):
    """Computes hidden states of packed tokens from a model's parameters."""

    can_share_prompts: bool
    can_share_prefixes: bool
    stages: Stages | None

    @property
    def reads_images(self) -> bool:
        """Whether packed rows may have images."""
        ...

    def hidden(self, packed: Packed) -> Float[Tensor, "m d"]:
        """Return the normalised last hidden states of the scored positions.

        They have the data type of the products.
        """
        ...

    def head(self) -> OutputLayer:
        """Return the output layer in the data type of the products."""
        ...

    def refresh(self) -> None:
        """Drop copies of the parameters; call this whenever they change."""
        ...

    def blocks(self) -> list[nn.Module]:
        """Return the modules that sharding gathers and frees one at a time."""
        ...

    def shard(self, group: TensorGroup | None = None, stages: Stages | None = None) -> None:
        """Prepare for sharding: keep no copies, read parameters in each call.

        Args:
            group: the ranks that share the matrices of a layer, of which this one keeps its part; None: no others.
            stages: the ranks that share the layers, of which this one keeps its own; None: no others.

        Raises:
            ConfigError: the model cannot be shared in this way (E1849, E1855, E1856).
        """
        ...


class _Layer(nn.Module):
    """One decoder layer over a Hugging Face layer, which is its child module."""

    def __init__(
        self, layer: nn.Module, *, head_size: int, eps: float, dtype: torch.dtype, is_adapted: bool = True
    ) -> None:
        super().__init__()
        self.wrapped = layer
        self.head_size, self.eps, self.dtype, self.is_adapted = head_size, eps, dtype, is_adapted
        self.is_sharded = False
        self.group: TensorGroup | None = None
        self.maps = LayerMaps(layer, dtype=dtype, is_adapted=is_adapted)
        self.num_queries, self.num_keys = (w.shape[0] // head_size for w in self.maps.qkv.weights[:2])

    def shard(self, group: TensorGroup | None) -> None:
        """Read the parameters in each call: in between, only parts are held."""
        self.is_sharded = True
        del self.maps
        if group is not None:
            self.group = group
            group.share(self.wrapped)
            self.num_queries, self.num_keys = self.num_queries // group.size, self.num_keys // group.size

    def forward(
        self,
        hidden: Tensor,
        added: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        packed: Packed,
        is_last: bool,
        recompute: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream after the layer as two summands.

        The next norm adds them up as it reads them. Where layers are recomputed, what goes into each is kept, so that
        the sum is returned, and None.

        Args:
            hidden: first summand of the stream before the layer, [n, d].
            added: the second one, [n, d]; None: there is none.
            cos: of the positions, [N, 1, D].
            sin: likewise, its first half negated.
            packed: the micro-batch.
            is_last: return the scored positions only.
            recompute: recompute the layer in the backward pass.
        """
        if not recompute:
            return self._compute(hidden, added, cos, sin, packed, is_last)
        stream = hidden if added is None else hidden + added
        return checkpoint(self._summed, stream, cos, sin, packed, is_last, use_reentrant=False), None

    def _summed(self, stream: Tensor, cos: Tensor, sin: Tensor, packed: Packed, is_last: bool) -> Tensor:
        hidden, added = self._compute(stream, None, cos, sin, packed, is_last)
        return hidden + added

    def _compute(
        self, hidden: Tensor, added: Tensor | None, cos: Tensor, sin: Tensor, packed: Packed, is_last: bool
    ) -> tuple[Tensor, Tensor]:
        maps, group, eps, dtype = self._maps(), self.group, self.eps, self.dtype
        num_tokens = len(cos)
        weight = self._norm(maps.norms[0], is_whole=False)
        hidden, normed = add_rms_norm(hidden, added, weight, eps=eps, dtype=dtype)
        normed = normed if group is None else group.enter(normed, num_tokens)
        heads = maps.qkv(normed).view(num_tokens, -1, self.head_size)
        if maps.head_norms is not None:
            heads = self._with_norms(heads, maps.head_norms)
        numbers = self.num_queries, self.num_keys
        attended = attend_heads(heads, cos, sin, packed, numbers=numbers, is_scored_only=is_last)
        if is_last:
            sources = packed.own_sources
            hidden = hidden if group is None else group.join(hidden, num_tokens)
            hidden, attended = hidden.index_select(0, sources), attended.index_select(0, sources)
        added = self._sum(maps.out(attended), maps.out_bias, is_whole=is_last)
        weight = self._norm(maps.norms[1], is_whole=is_last)
        hidden, normed = add_rms_norm(hidden, added, weight, eps=eps, dtype=added.dtype)
        normed = normed if group is None else group.enter(normed, None if is_last else num_tokens)
        return hidden, self._sum(maps.down(swiglu(maps.gate_up(normed))), None, is_whole=is_last)

    def _with_norms(self, heads: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        """Return the heads [N, Q + 2 H, D] with queries and keys normalised."""
        parts = heads.split((self.num_queries, self.num_keys, self.num_keys), dim=1)
        shared = weights if self.group is None else map(self.group.shared, weights)
        normed = [rms_norm(part, w, eps=self.eps, dtype=self.dtype) for part, w in zip(parts, shared, strict=False)]
        return torch.cat([*normed, parts[2]], 1)

    def _maps(self) -> LayerMaps:
        if not self.is_sharded:
            return self.maps
        return LayerMaps(self.wrapped, dtype=self.dtype, is_adapted=self.is_adapted, is_shared=self.group is not None)

    def _norm(self, weight: Tensor, *, is_whole: bool) -> Tensor:
        """Return a norm's weight for all tokens, or for those of this rank."""
        group = self.group
        return weight if group is None or is_whole or not group.is_by_tokens else group.shared(weight)

    def _sum(self, product: Tensor, bias: Tensor | None, *, is_whole: bool) -> Tensor:
        """Return a product and its bias, summed over the ranks that share it."""
        if self.group is None:
            return product
        total = self.group.leave(product, is_whole=is_whole)
        return total if bias is None else total + self._norm(bias, is_whole=is_whole)


class FastPackedDecoder(nn.Module):
    """Llama, Qwen2 and Qwen3 over the parameters of the Hugging Face model.

    The residual stream is float32, products are in `dtype`. After its attention, the last layer computes the scored
    positions only.

    Args:
        model: parameters in float32.
        dtype: data type of the products.
        recompute: recompute each layer in the backward pass, which needs less memory.
        is_adapted: compute with the adapter, where the model has one.
    """

    can_share_prompts = True
    can_share_prefixes = True

    def __init__(self, model: PreTrainedModel, *, dtype: torch.dtype, recompute: bool, is_adapted: bool = True) -> None:
        super().__init__()
        config = language_config(model.config) if is_vision(model.config) else model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.dtype, self.recompute, self.eps = dtype, recompute, config.rms_norm_eps
        self.is_sharded = False
        self.group: TensorGroup | None = None
        self.stages: Stages | None = None
        self.width = config.hidden_size
        self.vision = VisionPart(model, dtype=dtype, is_adapted=is_adapted) if is_vision(model.config) else None
        base = model.model if self.vision is None else model.model.language_model
        self.embed, self.norm = base.embed_tokens, base.norm
        self.tops = nn.ModuleList(child for child in model.children() if child is not model.model)
        sizes: dict[str, Any] = {"head_size": size, "eps": self.eps, "dtype": dtype, "is_adapted": is_adapted}
        self.layers = nn.ModuleList(_Layer(layer, **sizes) for layer in base.layers)
        self._own: list[_Layer] = list(self.layers)  # type: ignore[arg-type]
        # No children of this module: the model is sharded layer by layer, and the rotation has no parameters.
        self._outside: dict[str, Any] = {"model": model, "rotate": base.rotary_emb}
        self._head: Tensor | None = None

    @property
    def reads_images(self) -> bool:
        """Whether packed rows may have images."""
        return self.vision is not None

    def blocks(self) -> list[nn.Module]:
        """Return the modules that are sharded separately; see `PackedDecoder`."""
        return list(self.layers)

    def shard(self, group: TensorGroup | None = None, stages: Stages | None = None) -> None:
        """Prepare for sharding, keep this rank's layers; see `PackedDecoder`."""
        if self.vision is not None:
            if group is not None or stages is not None:
                raise ConfigError("ranks cannot share matrices or layers of a model that reads images", code="E3132")
            self.visual, self.vision.is_sharded = self.vision.visual, True
        self.is_sharded, self.group, self.stages = True, group, stages
        if group is not None:
            check_matrices(self._outside["model"], group.size)
        if stages is not None:
            self._own = [self._own[number] for number in stages.take(self._outside["model"])]
            self.layers = nn.ModuleList(self._own)
        for layer in self._own:
            layer.shard(group)
        if group is not None:
            group.replicate(self)

    def hidden(self, packed: Packed) -> Float[Tensor, "m d"]:
        """Return the last hidden states; see `PackedDecoder`."""
        if self.stages is not None:
            last = self.stages.forward(self, packed)
            return packed.tokens.new_zeros(len(packed.sources), self.width, dtype=self.dtype) if last is None else last
        hidden: Tensor = self(packed)
        return hidden

    def stream_shape(self, packed: Packed) -> tuple[int, int]:
        """Return the shape [n, d] of this rank's stream between two layers."""
        size = self.group.size if self.group is not None and self.group.is_by_tokens else 1
        return -(-len(packed.tokens) // size), self.width

    def outer(self) -> list[nn.Parameter]:
        """Return the parameters outside of the layers, which every stage has."""
        return [p for name, p in self.named_parameters() if not name.startswith("layers.")]

    def forward(self, packed: Packed, incoming: Tensor | None = None) -> Float[Tensor, "m d"]:
        """Return the last hidden states, or the stream [n, d] of an earlier stage.

        Call the module, not this method, so that sharded parameters are gathered.

        Args:
            packed: the micro-batch.
            incoming: residual stream [n, d] of the previous stage; None: this stage begins with the tokens.
        """
        tokens, positions = packed.own_tokens
        is_first = incoming is None
        hidden = nn.functional.embedding(tokens, held(self.embed.weight)) if incoming is None else incoming
        if self.vision is not None:
            hidden = self.vision.seen(hidden, packed.images)
        with torch.no_grad():
            place = positions[None] if packed.rotary is None else packed.rotary[:, None]
            cos, sin = self._outside["rotate"](hidden[None], place)
            cos, sin = cos[0, :, None].to(self.dtype), sin[0, :, None].to(self.dtype)
            sin[..., : sin.shape[-1] // 2].neg_()
        hidden = hidden if self.group is None or not is_first else self.group.cut(hidden)
        ends = self.stages is None or self.stages.is_last
        recompute, last = self.recompute and torch.is_grad_enabled(), self._own[-1] if ends else None
        added: Tensor | None = None
        for layer in self._own:
            hidden, added = layer(hidden, added, cos, sin, packed, layer is last, recompute)
        if not ends:
            return hidden if added is None else hidden + added
        return add_rms_norm(hidden, added, held(self.norm.weight), eps=self.eps, dtype=self.dtype)[1]

    def head(self) -> OutputLayer:
        """Return the output layer; see `PackedDecoder`."""
        parameter = held(self._outside["model"].get_output_embeddings().weight)
        if self._head is None or self.is_sharded:
            self._head = parameter.detach().to(self.dtype)
        return OutputLayer(self._head, None, parameter)

    def refresh(self) -> None:
        """Drop copies of the parameters; see `PackedDecoder`."""
        self._head = None
        for layer in self._own if not self.is_sharded else ():
            layer.maps.refresh()

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Leave the adapter out in the context; parameters must be sharded."""
        parts: list[Any] = [*self._own, *([] if self.vision is None else [self.vision])]
        for part in parts:
            part.is_adapted = False
        try:
            yield
        finally:
            for part in parts:
                part.is_adapted = True


class WithoutAdapter:
    """A view of a sharded decoder that leaves the adapter out.

    Args:
        decoder: computes with the adapter, and shares everything with the view.
    """

    def __init__(self, decoder: FastPackedDecoder) -> None:
        self.decoder = decoder
        self.stages = decoder.stages
        self.can_share_prompts = decoder.can_share_prompts
        self.can_share_prefixes, self.reads_images = decoder.can_share_prefixes, decoder.reads_images
        self.blocks, self.shard, self.head, self.refresh = decoder.blocks, decoder.shard, decoder.head, decoder.refresh

    def hidden(self, packed: Packed) -> Float[Tensor, "m d"]:
        """Return the last hidden states; see `PackedDecoder`."""
        with self.decoder.without_adapter():
            return self.decoder.hidden(packed)


def make_decoder(
    model: PreTrainedModel, *, dtype: torch.dtype, recompute: bool, without: Without | None = None
) -> PackedDecoder:
    """Return our own decoder if it supports the model, else Hugging Face's.

    Args:
        model: parameters in float32.
        dtype: data type of the products.
        recompute: recompute each layer in the backward pass.
        without: makes the context in which the model's forward leaves its adapter out; None: with the adapter.
    """
    if is_common(model):
        return FastPackedDecoder(model, dtype=dtype, recompute=recompute, is_adapted=without is None)
    if is_vision(model.config):
        raise EnvironmentProblem(
            f"this model of type {model.config.model_type} cannot be trained: its language model has a window, scaled "
            "rotary positions or another activation",
            code="E3130",
        )
    decoder = HFPackedDecoder(model, dtype=dtype, recompute=recompute, without=without)
    logger.info(
        "model type %s is computed by Hugging Face's own forward, %s", model.config.model_type, decoder.layout.text
    )
    return decoder


def is_common(model: PreTrainedModel) -> bool:
    """Return whether the language model is a plain Llama, Qwen2 or Qwen3.

    Plain means: SiLU, rotary positions, no window, no dropout.
    """
    sees = is_vision(model.config)
    config = language_config(model.config) if sees else model.config
    windows = {kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"}
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        (sees or config.model_type in OWN)
        and type(model).__name__.endswith((*HEADS, "ForConditionalGeneration") if sees else HEADS)
        and config.hidden_act == "silu"
        and not windows
        and not getattr(config, "attention_dropout", 0.0)
        and not getattr(config, "mlp_bias", False)
        and rope.get("rope_type", "default") in ("default", "linear", "llama3")
    )


__all__ = ["PackedDecoder", "FastPackedDecoder", "HFPackedDecoder", "WithoutAdapter", "is_common", "make_decoder"]
