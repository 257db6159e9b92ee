"""The fast path and the fallback against Hugging Face's own forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.tiny import tiny_config, tiny_model
from trinity.common.errors import EnvironmentProblem
from trinity.engine.torch.decoder import Decoder
from trinity.engine.torch.fast_decoder import is_fast
from trinity.engine.torch.kv_cache import KVCache
from trinity.engine.torch.loading import load_decoder

CPU = torch.device("cpu")
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": False, "attention_bias": True}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"rope_parameters": LLAMA3_ROPE}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "head_dim": 32}),
]


def stepwise_error(decoder: Decoder, model: PreTrainedModel) -> float:
    """Return the largest logprob difference over a prefill of unequal prompts and eight steps of each."""
    tokens = torch.randint(3, 60, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = torch.log_softmax(model(tokens).logits.float(), -1)
        rows, lengths = torch.arange(3), torch.tensor([4, 7, 5])
        logits, prefix = decoder.prefill(tokens[:, :7], lengths - 1)
        cache = KVCache(4, 32, is_fixed=True)
        for row in rows.tolist():
            cache.write([row], prefix.row(row, int(lengths[row])))
        errors = [(torch.log_softmax(logits, -1) - wanted[rows, lengths - 1]).abs().max()]
        for step in range(8):
            at = lengths + step
            logits = decoder.decode(tokens[rows, at], at, cache=cache, width=32 if step % 2 else 16)
            errors.append((torch.log_softmax(logits, -1) - wanted[rows, at]).abs().max())
    return float(torch.stack(errors).max())


@pytest.mark.parametrize(("family", "dims"), VARIANTS)
def test_fast_path_agrees_with_hugging_face(tmp_path: Path, family: str, dims: dict[str, Any]) -> None:
    model = tiny_model(tmp_path, family, **dims)
    decoder = load_decoder(str(tmp_path), dtype=torch.float32, device=CPU, max_model_len=64)
    assert decoder.kind == "fast"
    assert stepwise_error(decoder, model) <= 1e-5


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_fallback_agrees_with_hugging_face(tmp_path: Path, family: str) -> None:
    model = tiny_model(tmp_path, family)
    decoder = load_decoder(str(tmp_path), dtype=torch.float32, device=CPU, max_model_len=64, is_fast_allowed=False)
    assert decoder.kind == "hf"
    assert stepwise_error(decoder, model) <= 1e-5


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "qwen3", scale=1.0)
    decoder = load_decoder(str(tmp_path), dtype=torch.bfloat16, device=CPU, max_model_len=64)
    assert decoder.targets()["model.norm.weight"].dtype == torch.bfloat16
    assert 1e-5 < stepwise_error(decoder, model) < 5e-2


@pytest.mark.parametrize("is_fast_allowed", [True, False])
def test_sequence_logprobs_are_those_of_a_forward_pass(tmp_path: Path, is_fast_allowed: bool) -> None:
    model = tiny_model(tmp_path, "llama", max_position_embeddings=1200)
    decoder = load_decoder(
        str(tmp_path), dtype=torch.float32, device=CPU, max_model_len=1200, is_fast_allowed=is_fast_allowed
    )
    tokens = torch.randint(3, 60, (1100,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        got = decoder.sequence_logprobs(tokens, 0.7)
        wanted = torch.log_softmax(model(tokens[None]).logits[0, :-1] / 0.7, -1).gather(1, tokens[1:, None])[:, 0]
    assert got.shape == (1099,)
    assert (got - wanted).abs().max() <= 2e-5


@pytest.mark.parametrize(
    ("family", "dims"),
    [
        ("gpt2", {}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 0}),
    ],
)
def test_other_architectures_take_the_fallback(family: str, dims: dict[str, Any]) -> None:
    assert not is_fast(tiny_config(family, vocab_size=70, **dims), max_model_len=64)


def test_a_window_longer_than_every_sequence_is_fast() -> None:
    dims = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
    assert is_fast(tiny_config("qwen2", vocab_size=70, **dims), max_model_len=64)


def test_a_window_that_sequences_outgrow_is_right(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=0)
    decoder = load_decoder(str(tmp_path), dtype=torch.float32, device=CPU, max_model_len=64)
    assert decoder.kind == "hf"
    assert stepwise_error(decoder, model) <= 1e-5


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=str(tmp_path)):
        load_decoder(str(tmp_path), dtype=torch.float32, device=CPU, max_model_len=64)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(EnvironmentProblem, match="E3104.*safetensors"):
        load_decoder(str(tmp_path), dtype=torch.float32, device=CPU, max_model_len=64)


def test_torn_or_foreign_weights_name_the_folder(tmp_path: Path) -> None:
    tiny_model(tmp_path / "torn")
    file = tmp_path / "torn" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    tiny_model(tmp_path / "foreign")
    tiny_model(tmp_path / "small", num_hidden_layers=1)
    (tmp_path / "foreign" / "model.safetensors").write_bytes((tmp_path / "small" / "model.safetensors").read_bytes())
    for name in ("torn", "foreign"):
        with pytest.raises(EnvironmentProblem, match=f"E3101.*{tmp_path / name}"):
            load_decoder(str(tmp_path / name), dtype=torch.float32, device=CPU, max_model_len=64)


def test_sharded_safetensors_are_read(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "whole", "llama")
    model.save_pretrained(tmp_path / "parts", max_shard_size="100KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    decoder = load_decoder(str(tmp_path / "parts"), dtype=torch.float32, device=CPU, max_model_len=64)
    assert stepwise_error(decoder, model) <= 1e-5


def test_cache_grows_without_changing_what_it_holds() -> None:
    cache = KVCache(8, 300, is_fixed=False)
    from trinity.engine.torch.kv_cache import Prefix

    first = Prefix([torch.randn(1, 2, 5, 4)], [torch.randn(1, 2, 5, 4)])
    cache.write([0, 1], first)
    cache.reserve(7, 200)
    assert cache.keys[0].shape[0] >= 7 and 200 <= cache.keys[0].shape[2] <= 300
    assert torch.equal(cache.keys[0][1, :, :5], first.keys[0][0])
    cache.move([1], [4], width=5)
    assert torch.equal(cache.values[0][4, :, :5], first.values[0][0])
    held = cache.num_bytes
    cache.clear()
    assert held > 0 and cache.num_bytes == 0
