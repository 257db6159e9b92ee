"""Every causal family that transformers knows: the torch engine gives Hugging Face's numbers, or refuses it by name.

Dimension key: N = rows, T = tokens of a row, V = vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.families import FAMILIES, NOT_BUILT, WINDOW, tiny_config, tiny_model
from trinity.common.errors import EngineError
from trinity.common.models.families import REFUSED, engine_problem, families
from trinity.engine.torch.decoder import Decoder
from trinity.engine.torch.hf_loading import hf_decoder

ROWS, LENGTH = 4, 20
PROMPTS = (2, 9, 6, 4)
TOLERANCE, MOST_NOISE = 1e-5, 1e-3
TRAINED = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "ministral3",
    "mixtral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "phi",
    "phi3",
    "phimoe",
    "gpt_oss",
    "granite",
    "granitemoe",
    "olmo2",
    "olmo3",
    "olmoe",
    "cohere",
    "cohere2",
    "glm4",
    "glm4_moe",
    "exaone4",
    "smollm3",
    "starcoder2",
    "deepseek_v3",
    "opt",
    "gpt2",
    "seed_oss",
    "llama4_text",
    "ernie4_5_moe",
]
WITHOUT_DROPOUT = ("diffllama",)
SLOTS, ROW = "hf", "hf, row by row"
BUILT = [family for family in FAMILIES if family not in NOT_BUILT]
UNSERVED = [name for name, family in families().items() if family.engine == REFUSED]


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def made(family: str, **changes: Any) -> PreTrainedConfig:
    """Return a tiny configuration with dropout everywhere, and indexers that leave most positions out."""
    known = tiny_config(family).to_dict()
    # Scores of an indexer are sums of what ReLU leaves: with few heads many are 0, and which of them stay is chance.
    sparse = {"index_topk": 4, "index_n_heads": 32} if "index_topk" in known else {}
    return tiny_config(family, dropout=0.0 if family in WITHOUT_DROPOUT else 0.3, **sparse, **changes)


def alone(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Return the logprobs [T, V] of a row by Hugging Face's forward of that row alone."""
    return torch.log_softmax(model(input_ids=tokens[None], use_cache=False).logits[0].float(), -1)


def noise(model: PreTrainedModel, rows: Tensor, wanted: Tensor) -> float:
    """Return by how much Hugging Face's own forward is a matter of rounding.

    That is how far it differs between a row and the beginnings of it, and for weights that differ in the last bit.
    """
    ends = [(row, 3 + 5 * row) for row in range(ROWS)]
    off = [float((alone(model, rows[row, :end])[-1] - wanted[row, end - 1]).abs().max()) for row, end in ends]
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.mul_(1 + 2.0**-23 * torch.randint_like(parameter, -1, 2))
    off += [float((alone(other, row) - own).abs().max()) for row, own in zip(rows, wanted, strict=True)]
    return max(off)


class Served:
    """Rows in slots of a decoder, of which every logprob is compared with that of the row alone."""

    def __init__(self, decoder: Decoder, rows: Tensor, wanted: Tensor) -> None:
        self.decoder, self.rows, self.wanted = decoder, rows, wanted
        self.cache = decoder.new_cache(ROWS, LENGTH, is_fixed=False)
        self.slots: list[int] = []
        self.lengths: list[int] = []
        self.error = 0.0

    def join(self, rows: list[int]) -> None:
        """Prefill the prompts of `rows` together, padded on the right, into the next slots."""
        lengths = torch.tensor([PROMPTS[row] for row in rows])
        prompts = self.rows[rows, : int(lengths.max())].clone()
        for prompt, length in zip(prompts, lengths.tolist(), strict=True):
            prompt[length:] = 0
        logits, prefix = self.decoder.prefill(prompts, lengths - 1)
        for index, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True)):
            self.cache.write([len(self.slots)], prefix.row(index, length))
            self.slots.append(row)
            self.lengths.append(length)
        self._compare(logits, rows, lengths - 1)

    def leave(self, slot: int) -> None:
        """Drop the row of a slot and close the gap with the last one."""
        self.cache.move([len(self.slots) - 1], [slot], width=max(self.lengths))
        self.slots[slot], self.lengths[slot] = self.slots.pop(), self.lengths.pop()

    def step(self) -> None:
        """Take one more token of every row."""
        at, width = torch.tensor(self.lengths), min(LENGTH, -(-(max(self.lengths) + 1) // 4) * 4)
        self.cache.reserve(len(self.slots), width)
        logits = self.decoder.decode(self.rows[self.slots, at], at, cache=self.cache, width=width)
        self._compare(logits, self.slots, at)
        self.lengths = [length + 1 for length in self.lengths]

    def _compare(self, logits: Tensor, rows: list[int], at: Tensor) -> None:
        got = torch.log_softmax(logits, -1)
        assert torch.isfinite(got).all()
        self.error = max(self.error, float((got - self.wanted[rows, at]).abs().max()))


def served_error(decoder: Decoder, rows: Tensor, wanted: Tensor) -> float:
    """Return the largest error of sampling's logprobs, over rows that join and leave, and of `sequence_logprobs`."""
    served = Served(decoder, rows, wanted)
    served.join([0, 1, 2])
    for _ in range(3):
        served.step()
    served.leave(0)
    served.join([3])
    while max(served.lengths) < LENGTH - 1:
        served.step()
    assert min(served.lengths) > 2 * WINDOW
    scored = [decoder.sequence_logprobs(row, 1.0) for row in rows]
    expected = [own[:-1].gather(1, row[1:, None])[:, 0] for own, row in zip(wanted, rows, strict=True)]
    again = decoder.sequence_logprobs(rows[0], 1.0)
    assert torch.equal(scored[0], again), "nothing in the engine is left to chance"
    return max(served.error, *(float((a - b).abs().max()) for a, b in zip(scored, expected, strict=True)))


def reference(config: PreTrainedConfig) -> tuple[PreTrainedModel, Tensor, Tensor, float]:
    """Return a model, rows [N, T] of tokens, their logprobs [N, T, V] each alone, and the noise of these."""
    model = tiny_model(config)
    rows = torch.randint(3, 90, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    wanted = torch.stack([alone(model, row) for row in rows])
    return model, rows, wanted, noise(model, rows, wanted)


def decoder_of(model: PreTrainedModel, config: PreTrainedConfig) -> Decoder:
    """Return the engine's decoder over the same weights."""
    own: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    own.load_state_dict(model.state_dict())
    return hf_decoder(own.eval(), max_model_len=LENGTH)


@pytest.mark.difference("Model families of the torch engine")
@pytest.mark.parametrize("family", [family for family in BUILT if family not in UNSERVED])
def test_a_family_is_right_over_rows_of_different_lengths(family: str) -> None:
    model, rows, wanted, rounding = reference(made(family))
    assert rounding < MOST_NOISE, "a token sees only those before it"
    decoder = decoder_of(model, made(family))
    assert decoder.kind == SLOTS or family not in TRAINED, "a family that people train is not served row by row"
    assert families()[family].engine in ("own", {SLOTS: "slots", ROW: "rows"}[decoder.kind])
    assert served_error(decoder, rows, wanted) <= max(TOLERANCE, 4 * rounding)


VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("falcon", ROW, {"alibi": True}),
    ("gpt2", SLOTS, {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    ("granitemoehybrid", SLOTS, {"layer_types": ["full_attention", "full_attention"]}),
    ("lfm2", ROW, {"layer_types": ["conv", "full_attention"]}),
    ("llama4_text", SLOTS, {"attn_temperature_tuning": True, "floor_scale": 4}),
    ("minimax_m3_vl_text", ROW, {"index_block_size": 2, "index_topk_blocks": 2, "index_local_blocks": 1}),
    ("minimax_m3_vl_text", SLOTS, {"layer_types": ["full_attention", "full_attention"]}),
    ("phi3", SLOTS, {"sliding_window": None}),
    ("qwen4_exp_text", ROW, {"indexer_budget": 4}),
]


@pytest.mark.parametrize(("family", "kind", "changes"), VARIANTS)
def test_a_family_is_right_in_its_other_forms(family: str, kind: str, changes: dict[str, Any]) -> None:
    model, rows, wanted, rounding = reference(made(family, **changes))
    decoder = decoder_of(model, made(family, **changes))
    assert decoder.kind == kind and rounding < MOST_NOISE
    assert served_error(decoder, rows, wanted) <= max(TOLERANCE, 4 * rounding)


@pytest.mark.parametrize("changes", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_a_decoder_that_sees_what_follows_is_refused(changes: dict[str, bool]) -> None:
    config = made("gemma3_text", **changes)
    with pytest.raises(EngineError, match=r"E5604.*gemma3_text.*see those after them.*is_decoder: true"):
        decoder_of(tiny_model(config), config)


@pytest.mark.difference("Model families of the torch engine")
@pytest.mark.parametrize("family", sorted(set(UNSERVED) - set(NOT_BUILT)))
def test_a_family_is_refused_only_where_it_would_fail(family: str) -> None:
    config = made(family, **{"is_decoder": False} if family == "xmod" else {})
    assert engine_problem(config.to_dict())
    model, rows, wanted, rounding = reference(config)
    try:
        error = served_error(decoder_of(model, config), rows, wanted)
    except EngineError as refused:
        assert refused.code == "E5604" and family in str(refused) and "engine_type: vllm" in str(refused)
        return
    assert rounding > MOST_NOISE or error > max(1e-3, 40 * rounding)


ENCODERS = [family for family in UNSERVED if engine_problem({"model_type": family, "is_decoder": True}) is None]


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_that_was_made_a_decoder_is_right(family: str) -> None:
    model, rows, wanted, rounding = reference(made(family, is_decoder=True))
    assert rounding < MOST_NOISE, "a token sees only those before it"
    error = served_error(decoder_of(model, made(family, is_decoder=True)), rows, wanted)
    assert error <= max(TOLERANCE, 4 * rounding)


def test_what_is_not_built_here_is_not_served() -> None:
    assert NOT_BUILT.keys() < set(UNSERVED) < set(FAMILIES)
