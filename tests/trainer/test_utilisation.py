"""Model FLOPs utilisation, by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from trinity.trainer.utilisation import PEAKS, ComputedTokens, ModelCost, cost_of, peak_flops, utilisation

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("is_tied", [True, False])
def test_what_a_model_costs_counts_the_output_layer_and_no_embedding(is_tied: bool) -> None:
    cost = cost_of(LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=is_tied)))
    # A layer: q and o 16 x 16, k and v 8 x 16, gate, up and down 24 x 16, two norms of 16; then a norm and the output.
    layer = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16 + 2 * 16
    assert cost == ModelCost(2 * layer + 16 + 32 * 16, attention_width=2 * 16)


def test_of_experts_nothing_is_said() -> None:
    config = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    assert cost_of(MixtralForCausalLM(config)) is None


def test_the_operations_are_six_a_parameter_and_token_and_causal_attention() -> None:
    work = ComputedTokens()
    work.add(torch.tensor([3, 5]))
    work.add(torch.tensor([2]))
    assert (work.num_tokens, work.num_pairs) == (10, 38)
    cost = ModelCost(100, attention_width=7)
    assert cost.flops(work.num_tokens, work.num_pairs) == 6 * 100 * 10 + 6 * 7 * 38
    assert utilisation(cost, work, 2.0, peak=7596.0) == {"perf/mfu/actor": 0.5}


def test_attention_costs_what_two_products_of_half_the_pairs_cost_three_times() -> None:
    """Scores and their sums: 2 L^2 w each, half of it causal; the backward pass is twice the forward pass."""
    length, width = 8, 5
    assert ModelCost(0, width).flops(length, length**2) == 3 * (2 * 2 * length**2 * width) / 2


@pytest.mark.parametrize("given", [{"cost": None}, {"peak": None}, {"seconds": 0.0}, {"work": ComputedTokens()}])
def test_where_it_cannot_be_computed_it_is_absent(given: dict[str, object]) -> None:
    work = ComputedTokens()
    work.add(torch.tensor([4]))
    known = {"cost": ModelCost(1, 1), "work": work, "seconds": 1.0, "peak": 1.0} | given
    peak = known.pop("peak")
    assert utilisation(*known.values(), peak=peak) == {}  # type: ignore[arg-type]


def test_the_peak_is_that_of_the_device_in_sixteen_bits() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", torch.bfloat16) == 989e12
    assert peak_flops("NVIDIA H100 PCIe", torch.float16) == 756e12
    assert peak_flops("NVIDIA L40S", torch.bfloat16) == 362e12
    assert peak_flops("NVIDIA H100 80GB HBM3", torch.float32) is None
    assert peak_flops("NVIDIA Nothing", torch.bfloat16) is None
    names = list(PEAKS)
    assert all(not name.startswith(earlier) for i, name in enumerate(names) for earlier in names[:i])
