"""Model FLOPs utilisation of the policy's update.

It is what an update computes, divided by what the devices could compute in that time.

Chowdhery et al., "PaLM" (arXiv:2204.02311v5, appendix B): 6 N floating-point operations a token for the forward and
the backward pass through N parameters, and attention besides. Here attention is causal, so that it costs half.
What is computed again to save memory does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

PEAKS = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L4": 121e12,
}
"""FLOP/s of dense bfloat16 products, by a part of the device's name, longer names first; from NVIDIA's data sheets."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelCost:
    """What a dense decoder costs.

    Attributes:
        num_parameters: those in matrix products: without the embedding, unless it is the output layer as well.
        attention_width: attention heads times their size, summed over the layers.
    """

    num_parameters: int
    attention_width: int

    def flops(self, num_tokens: int, num_pairs: int) -> float:
        """Return the operations of a forward and a backward pass.

        Args:
            num_tokens: of all rows.
            num_pairs: sum over the rows of the square of their tokens.
        """
        return 6.0 * self.num_parameters * num_tokens + 6.0 * self.attention_width * num_pairs


class ComputedTokens:
    """Counts the tokens that the passes of a step compute."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_pairs = 0

    def add(self, lengths: Tensor) -> None:
        """Add rows of these lengths [B] in tokens."""
        self.num_tokens += int(lengths.sum())
        self.num_pairs += int(lengths.long().square().sum())


def cost_of(model: PreTrainedModel) -> ModelCost | None:
    """Return what a model costs.

    None where it is not known: for models with experts or images, and for layers without attention.
    """
    config: Any = model.config.get_text_config()
    found = vars(config)
    if config is not model.config or any((found.get(name) or 0) > 1 for name in EXPERTS):
        return None
    if not {"num_hidden_layers", "num_attention_heads", "hidden_size"} <= found.keys():
        return None
    embedding: Any = model.get_input_embeddings()
    output: Any = model.get_output_embeddings()
    if output is None:
        return None
    total = sum(parameter.numel() for parameter in model.parameters())
    is_tied = embedding.weight is output.weight
    heads = config.num_attention_heads
    size = found.get("head_dim") or config.hidden_size // heads
    return ModelCost(total if is_tied else total - embedding.weight.numel(), config.num_hidden_layers * heads * size)


def peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    """Return the FLOP/s of a device.

    None where it is not known, or the products are not computed in 16 bits.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return None
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)


def utilisation(
    cost: ModelCost | None, work: ComputedTokens, seconds: float, *, peak: float | None
) -> dict[str, float]:
    """Return `perf/mfu/actor`, a share, where it can be computed.

    Args:
        cost: of the policy.
        work: of its update, on all devices together.
        seconds: of the update.
        peak: FLOP/s of all devices together.
    """
    if cost is None or peak is None or seconds <= 0 or not work.num_tokens:
        return {}
    return {"perf/mfu/actor": cost.flops(work.num_tokens, work.num_pairs) / (seconds * peak)}
