"""Rotary frequencies depend on a token's position alone, never on the rows beside it nor on what follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.families import tiny_config, tiny_model
from trinity.common.errors import ConfigError
from trinity.common.models.rotary import settle_rotary
from trinity.engine.torch.hf_loading import hf_decoder
from trinity.engine.torch.loading import load_decoder

ORIGINAL = 8
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": ORIGINAL,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def phi3(rope: dict[str, Any] = LONGROPE) -> PreTrainedModel:
    """Return a Phi-3 whose short and long frequencies differ, with a window longer than the rows."""
    changes = {"rope_parameters": rope, "original_max_position_embeddings": ORIGINAL, "sliding_window": 64}
    return tiny_model(tiny_config("phi3", partial_rotary_factor=1.0, **changes))


def forward(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=tokens, use_cache=False).logits.float(), -1)


def rows(count: int, length: int) -> Tensor:
    return torch.randint(3, 90, (count, length), generator=torch.Generator().manual_seed(3))


def test_longrope_by_itself_follows_the_longest_row_of_a_call() -> None:
    tokens = rows(1, 12)
    long, short = forward(phi3(), tokens)[:, :6], forward(phi3(), tokens[:, :6])
    assert (long - short).abs().max() > 1e-2, "otherwise the tests below show nothing"


@pytest.mark.difference("Rotary frequencies that follow the length (`longrope`, `dynamic`)")
@pytest.mark.parametrize("max_model_len", [ORIGINAL, 12])
def test_longrope_has_one_set_of_frequencies_a_run(max_model_len: int) -> None:
    model, tokens = phi3(), rows(1, max_model_len)
    wanted = forward(model, tokens)  # of a row as long as any may become
    settle_rotary(model, max_model_len=max_model_len)
    for length in (3, ORIGINAL - 1, max_model_len, 5):
        assert torch.allclose(forward(model, tokens[:, :length]), wanted[:, :length], atol=1e-5)
    assert model.config.rope_parameters["short_factor"] == LONGROPE["short_factor"], "what is exported stays as it was"


def test_samples_and_scores_of_longrope_agree_across_its_original_length() -> None:
    model, tokens = phi3(), rows(2, 12)
    wanted = forward(model, tokens)
    settle_rotary(model, max_model_len=12)
    with torch.no_grad():
        decoder = hf_decoder(model, max_model_len=12)
        cache = decoder.new_cache(2, 12, is_fixed=True)
        lengths = torch.tensor([3, 9])
        logits, prefix = decoder.prefill(tokens[:, :9], lengths - 1)
        for row in range(2):
            cache.write([row], prefix.row(row, int(lengths[row])))
        got = torch.log_softmax(logits, -1)
        assert torch.allclose(got, wanted[torch.arange(2), lengths - 1], atol=1e-5)
        for at in (torch.tensor([3, 9]), torch.tensor([4, 10])):
            logits = decoder.decode(tokens[torch.arange(2), at], at, cache=cache, width=12)
            assert torch.allclose(torch.log_softmax(logits, -1), wanted[torch.arange(2), at], atol=1e-5)
        scored = decoder.sequence_logprobs(tokens[0, :6], 1.0)
    assert torch.allclose(scored, wanted[0, :5].gather(1, tokens[0, 1:6, None])[:, 0], atol=1e-5)


def test_frequencies_a_layer_type_are_settled_each() -> None:
    plain = {"rope_type": "default", "rope_theta": 1e4}
    config = tiny_config("gemma3_text", rope_parameters={"full_attention": LONGROPE, "sliding_attention": plain})
    model, tokens = tiny_model(config), rows(1, 12)
    wanted = forward(tiny_model(config), tokens)
    settle_rotary(model, max_model_len=12)
    assert torch.allclose(forward(model, tokens[:, :5]), wanted[:, :5], atol=1e-5)


@pytest.mark.difference("Rotary frequencies that follow the length (`longrope`, `dynamic`)")
def test_dynamic_frequencies_are_refused_where_they_would_follow_the_length(tmp_path: Path) -> None:
    config = tiny_config("llama", rope_parameters=DYNAMIC, max_position_embeddings=16)
    tiny_model(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"E1895.*dynamic.*beyond 16 tokens.*max_model_len 17.*16 at most.*yarn"):
        load_decoder(str(tmp_path), dtype=torch.float32, device=torch.device("cpu"), max_model_len=17)
    decoder = load_decoder(str(tmp_path), dtype=torch.float32, device=torch.device("cpu"), max_model_len=16)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    tokens = rows(1, 16)
    with torch.no_grad():
        got = decoder.sequence_logprobs(tokens[0], 1.0)
    assert torch.allclose(got, forward(model, tokens)[0, :-1].gather(1, tokens[0, 1:, None])[:, 0], atol=1e-5)


def test_a_second_switch_beside_longrope_is_refused() -> None:
    model = tiny_model(tiny_config("phimoe"))
    model.config.rope_parameters = {**LONGROPE, "short_mscale": 1.0, "long_mscale": 1.2}
    for length, words in ((ORIGINAL + 1, ORIGINAL + 1), (None, "null")):
        with pytest.raises(ConfigError, match=rf"E1895.*beyond {ORIGINAL} tokens.*max_model_len {words}"):
            settle_rotary(model, max_model_len=length)
    settle_rotary(model, max_model_len=ORIGINAL)


def test_the_engine_chooses_by_the_length_that_the_trainer_chooses_by(tmp_path: Path) -> None:
    model, tokens = phi3(), rows(1, 12)
    model.save_pretrained(tmp_path)
    wanted = forward(model, tokens)[0, :4].gather(1, tokens[0, 1:5, None])[:, 0]
    loaded = {"dtype": torch.float32, "device": torch.device("cpu"), "max_model_len": ORIGINAL}
    with torch.no_grad():
        long = load_decoder(str(tmp_path), **loaded, rotary_len=12).sequence_logprobs(tokens[0, :5], 1.0)
        short = load_decoder(str(tmp_path), **loaded).sequence_logprobs(tokens[0, :5], 1.0)
    assert torch.allclose(long, wanted, atol=1e-5) and (short - wanted).abs().max() > 1e-3
