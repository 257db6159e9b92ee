"""The linear layers of a decoder layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trinity.trainer.verl.layers import FusedLinear, LowRank
from trinity.trainer.verl.parallel.tensor import held


class LayerMaps:
    """The linear layers and norms of a decoder layer's current parameters.

    Args:
        layer: a layer of Hugging Face.
        dtype: data type of the products.
        is_adapted: compute with the adapter, where the layer has one.
        is_shared: the layer's matrices are parts, and other ranks have the rest.

    Attributes:
        qkv: queries, keys and values side by side.
        out: output of attention.
        out_bias: bias of a shared `out`, which is added to the sum over the ranks.
        gate_up: gate and up side by side.
        down: output of the feed-forward block.
        norms: weights of the norms before attention and before the feed-forward block.
        head_norms: weights of the norms of queries and keys, if the layer has them.
    """

    def __init__(self, layer: nn.Module, *, dtype: torch.dtype, is_adapted: bool, is_shared: bool = False) -> None:
        tensors = {name.replace(".base_layer.", "."): held(tensor) for name, tensor in layer.named_parameters()}
        self.out_bias = tensors.pop("self_attn.o_proj.bias", None) if is_shared else None

        def fused(*names: str) -> FusedLinear:
            weights = [tensors[f"{name}.weight"] for name in names]
            biases = [tensors[f"{name}.bias"] for name in names if f"{name}.bias" in tensors]
            additions = [_addition(layer, name, tensors) if is_adapted else None for name in names]
            return FusedLinear(weights, biases, dtype=dtype, low_rank=additions)

        self.qkv = fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.out = fused("self_attn.o_proj")
        self.gate_up = fused("mlp.gate_proj", "mlp.up_proj")
        self.down = fused("mlp.down_proj")
        self.norms = (tensors["input_layernorm.weight"], tensors["post_attention_layernorm.weight"])
        self.head_norms: tuple[Tensor, Tensor] | None = None
        if "self_attn.q_norm.weight" in tensors:
            self.head_norms = (tensors["self_attn.q_norm.weight"], tensors["self_attn.k_norm.weight"])

    def refresh(self) -> None:
        """Drop copies of the parameters."""
        for linear in (self.qkv, self.out, self.gate_up, self.down):
            linear.refresh()


def _addition(layer: nn.Module, name: str, tensors: Mapping[str, Tensor]) -> LowRank | None:
    """Return the adapter's addition to the linear layer `name`, or None."""
    down = tensors.get(f"{name}.lora_A.default.weight")
    if down is None:
        return None
    module: Any = layer.get_submodule(name)
    return LowRank(down, tensors[f"{name}.lora_B.default.weight"], module.scaling["default"])
