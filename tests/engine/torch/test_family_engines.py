"""Whole engines over families that work in different ways: what is recorded with a sample is what a forward gives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engine.engines import engine, recomputed, run
from tests.families import tiny_config, tiny_model
from tests.tiny import tiny_tokenizer
from trinity.common.errors import EngineError, EnvironmentProblem
from trinity.common.experience import Experience
from trinity.engine.torch.loading import load_decoder

# Windows, caps and windows, sinks, experts, keys and values of two sizes; then recurrent, both kinds, ALiBi.
BY_SLOTS = ("mistral", "gemma2", "gpt_oss", "mixtral", "deepseek_v3")
BY_ROWS = ("mamba", "qwen3_next", "bloom")
ROUNDING = {"qwen3_next": 1e-3}
"""Where Hugging Face's own forward pass differs by as much for weights that differ in the last bit."""
PROMPTS = ("1+2=", "12+34=", "1", "(12+34)*56-78=")


def saved(path: Path, family: str) -> PreTrainedModel:
    """Write a tiny model and its tokenizer; return the model with Hugging Face's own attention, without cache."""
    model = tiny_model(tiny_config(family, dropout=0.0))
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    tiny_tokenizer(path)
    reference: Any = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    reference.config.use_cache = False
    return reference.eval()


async def sampled(path: Path, **settings: Any) -> tuple[list[Experience], list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return samples of prompts of different lengths, more than there are slots, and the engine's own scores of them.

    The weights are updated with themselves before.
    """
    async with engine(path, max_num_seqs=5, **settings) as made:
        weights = {name: tensor.clone() for name, tensor in made._ready()[0].targets().items()}
        await made.update_weights(weights, version=1)
        calls = [made.generate(prompt, n=3, max_tokens=9 + 4 * index) for index, prompt in enumerate(PROMPTS)]
        samples = [sample for group in await asyncio.gather(*calls) for sample in group]
        return samples, [await made.logprobs(sample.tokens.tolist()) for sample in samples], weights


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("family", [*BY_SLOTS, *BY_ROWS])
def test_an_engine_records_what_a_forward_pass_gives(tmp_path: Path, family: str, is_deterministic: bool) -> None:
    model = saved(tmp_path, family)
    samples, scores, _ = run(sampled(tmp_path, is_deterministic=is_deterministic))
    assert {sample.prompt_length for sample in samples} == {len(prompt) for prompt in PROMPTS}
    assert max(len(sample.tokens) for sample in samples) > 20
    atol = ROUNDING.get(family, 2e-5)
    for sample, score in zip(samples, scores, strict=True):
        wanted = recomputed(model, sample)
        assert torch.allclose(sample.logprobs, wanted, atol=atol, rtol=0)
        assert torch.allclose(score[sample.prompt_length - 1 :], wanted, atol=atol, rtol=0)


@pytest.mark.parametrize("family", ["gemma2", "mamba"])
def test_a_deterministic_engine_repeats_itself_to_the_bit(tmp_path: Path, family: str) -> None:
    saved(tmp_path, family)
    first, second = (run(sampled(tmp_path, is_deterministic=True))[0] for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.logprobs, other.logprobs)


def test_new_weights_of_a_family_served_row_by_row_are_the_ones_that_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path / "old", "mamba")
    other = tiny_model(tiny_config("mamba"), seed=5)

    async def after() -> Experience:
        async with engine(tmp_path / "old") as made:
            await made.generate("1+2=", max_tokens=4)
            await made.update_weights(other.state_dict(), version=3)
            return (await made.generate("1+2=", max_tokens=8))[0]

    with caplog.at_level("WARNING", logger="trinity"):
        sample = run(after())
    assert "one row a call for the model family mamba, which is slow" in caplog.text
    other.config.use_cache = False
    assert sample.info["model_version"] == 3
    assert torch.allclose(sample.logprobs, recomputed(other, sample), atol=2e-5, rtol=0)


def test_a_family_that_is_not_served_is_named_when_the_engine_starts(tmp_path: Path) -> None:
    saved(tmp_path / "model", "zamba2")

    async def start() -> None:
        async with engine(tmp_path / "model"):
            pass

    with pytest.raises(EngineError, match=r"E5604.*model family zamba2.*engine_type: vllm"):
        run(start())


def test_what_transformers_cannot_load_is_named_with_its_folder(tmp_path: Path) -> None:
    model = tiny_model(tiny_config("llama"))
    model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"llama"', '"qwen3_vl"'))
    with pytest.raises(EnvironmentProblem, match=rf"E3101.*{tmp_path}.*Qwen3VLConfig"):
        load_decoder(str(tmp_path), dtype=torch.float32, device=torch.device("cpu"), max_model_len=16)
