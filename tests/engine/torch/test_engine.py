"""What a call to the engine means: lengths, ends, truncation, seeds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from tests.engine.engines import engine, recomputed, response, run
from tests.tiny import tiny_model
from trinity.common.errors import EngineError, NotAvailableError
from trinity.common.experience import Experience
from trinity.common.models.generate_params import GenerateParams

Made = tuple[Path, PreTrainedModel]


def generate(path: Path, prompt: str | list[int], settings: dict[str, Any] | None = None, **arguments: Any) -> Any:
    async def call() -> list[Experience]:
        async with engine(path, **(settings or {})) as made:
            return await made.generate(prompt, **arguments)

    return run(call())


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_sampled_logprobs_are_those_of_a_forward_pass(
    request: pytest.FixtureRequest, family: str, temperature: float
) -> None:
    path, model = request.getfixturevalue(family)
    for made in generate(path, "12+34=", n=6, temperature=temperature, max_tokens=20):
        wanted = recomputed(model, made, temperature=temperature or 1.0)
        assert (made.logprobs - wanted).abs().max() <= 1e-5


def test_an_experience_says_what_was_asked_and_answered(llama: Made) -> None:
    (made,) = generate(llama[0], "12+34=", max_tokens=5, ignore_eos=True)
    assert made.prompt_text == "12+34=" and made.prompt_length == 6
    assert made.tokens[:6].tolist() == [4, 5, 13, 6, 7, 17]
    assert made.action_mask.tolist() == [True] * 5
    assert made.info == {"model_version": 0, "finish_reason": "length"}
    assert made.truncate_status == "response_truncated"


def test_a_stop_token_ends_the_response_and_is_part_of_it(llama: Made) -> None:
    made = generate(llama[0], "1+1=", n=16, max_tokens=50, temperature=3.0)
    ended = [exp for exp in made if exp.info["finish_reason"] == "stop"]
    assert ended
    for exp in ended:
        assert response(exp)[-1] == 1 and 1 not in response(exp)[:-1]
        assert exp.truncate_status is None and "<eos>" not in exp.response_text
    endless = generate(llama[0], "1+1=", n=16, max_tokens=50, temperature=3.0, ignore_eos=True)
    assert all(exp.response_length == 50 for exp in endless)


def test_stop_tokens_of_the_generation_config_count(llama: Made, tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama")
    GenerationConfig(eos_token_id=[1, 5, 6]).save_pretrained(tmp_path)
    made = generate(tmp_path, "1+1=", n=16, max_tokens=50, temperature=3.0)
    assert {response(exp)[-1] for exp in made if exp.info["finish_reason"] == "stop"} > {1}


def test_min_tokens_postpones_the_stop(llama: Made) -> None:
    hot = {"n": 16, "temperature": 5.0, "max_tokens": 40}
    assert min(exp.response_length for exp in generate(llama[0], "1+1=", **hot)) < 12
    held = generate(llama[0], "1+1=", min_tokens=12, **hot)
    assert min(exp.response_length for exp in held) >= 12
    for exp in held:
        assert (exp.logprobs - recomputed(llama[1], exp, temperature=5.0)).abs().max() <= 1e-5


def test_a_stop_string_ends_the_response_and_is_cut_from_the_text(llama: Made) -> None:
    free = generate(llama[0], "7*8=", max_tokens=30, ignore_eos=True, seed=5)[0]
    word = free.response_text[4:6]
    where = free.response_text.index(word)
    (made,) = generate(llama[0], "7*8=", max_tokens=30, ignore_eos=True, seed=5, stop=word)
    assert made.response_text == free.response_text[:where]
    # The special tokens 0 to 2 decode to nothing.
    written = [place for place, token in enumerate(response(free)) if token > 2]
    assert response(made) == response(free)[: written[where + 1] + 1]
    assert made.info["finish_reason"] == "stop" and made.truncate_status is None


def test_prompt_and_response_stay_within_the_model_length(llama: Made) -> None:
    prompt = [5] * 60
    (made,) = generate(llama[0], prompt, max_tokens=30, ignore_eos=True)
    assert len(made.tokens) == 64 and made.truncate_status == "response_truncated"
    with pytest.raises(EngineError, match=r"64 tokens leaves no room .*model.max_model_len"):
        generate(llama[0], [5] * 64)


def test_a_long_prompt_is_cut_marked_and_masked(llama: Made, caplog: pytest.LogCaptureFixture) -> None:
    """B95."""
    prompt = list(range(4, 24))
    made = generate(llama[0], prompt, {"model": {"max_prompt_tokens": 8}}, n=3)
    assert len(made) == 3
    for exp in made:
        assert exp.truncate_status == "prompt_truncated"
        assert exp.tokens[: exp.prompt_length].tolist() == prompt[:8]
        assert not exp.action_mask.any() and exp.response_text == ""
    assert caplog.text.count("cut to 8") == 1
    settings = {"model": {"max_prompt_tokens": 8, "enable_prompt_truncation": False}}
    (whole,) = generate(llama[0], prompt, settings, max_tokens=3)
    assert whole.prompt_length == 20 and whole.truncate_status != "prompt_truncated"


def test_seeds_and_identities_decide_the_samples(llama: Made) -> None:
    async def call() -> dict[str, list[int]]:
        async with engine(llama[0]) as made:
            out = {
                "seed": await made.generate("1+2=", seed=3, max_tokens=12),
                "again": await made.generate("1+2=", seed=3, max_tokens=12),
                "other": await made.generate("1+2=", seed=4, max_tokens=12),
                "free": await made.generate("1+2=", max_tokens=12),
                "next": await made.generate("1+2=", max_tokens=12),
                "id": await made.generate("1+2=", sample_ids=["1/0/0/0"], max_tokens=12),
                "id again": await made.generate("1+2=", sample_ids=["1/0/0/0"], max_tokens=12),
            }
        return {name: response(exps[0]) for name, exps in out.items()}

    got = run(call())
    assert got["seed"] == got["again"] and got["id"] == got["id again"]
    assert len({tuple(tokens) for name, tokens in got.items() if "again" not in name}) == 5


def test_a_sample_of_a_group_is_the_one_its_identity_gives_alone(llama: Made) -> None:
    async def call() -> tuple[list[Experience], list[Experience], float]:
        async with engine(llama[0]) as made:
            ids = [f"1/0/{run}/0" for run in range(5)]
            group = await made.generate("12+3=", n=5, sample_ids=ids, max_tokens=15)
            prefills = (await made.stats())["prefix_groups"]
            alone = [(await made.generate("12+3=", sample_ids=[name], max_tokens=15))[0] for name in ids]
            return group, alone, prefills

    group, alone, prefills = run(call())
    assert [response(exp) for exp in group] == [response(exp) for exp in alone]
    assert len({tuple(response(exp)) for exp in group}) > 1
    assert prefills == 1


def test_the_engine_samples_the_model_distribution(llama: Made) -> None:
    path, model = llama
    with torch.no_grad():
        wanted = torch.softmax(model(torch.tensor([[4, 13, 5, 17]])).logits[0, -1] / 0.8, -1)
    made = generate(path, [4, 13, 5, 17], {"max_num_seqs": 512}, n=4000, max_tokens=1, temperature=0.8)
    seen = torch.bincount(torch.tensor([response(exp)[0] for exp in made]), minlength=len(wanted)) / 4000
    assert (seen - wanted).abs().max() < 5 * (0.25 / 4000) ** 0.5


def test_vocabulary_padding_is_never_sampled(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama", vocab_size=200, scale=1.0)
    made = generate(tmp_path, "1+2=", n=32, temperature=5.0, ignore_eos=True)
    assert max(max(response(exp)) for exp in made) < 90
    assert (made[0].logprobs - recomputed(model, made[0], temperature=5.0)).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"top_p": 0.0}, "top_p must be in"),
        ({"top_k": -2}, "top_k must be -1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"sample_ids": ["a", "b"]}, "sample_ids must have n entries"),
        ({"stop": ["a", ""]}, "stop must not hold an empty text"),
        ({"max_token": 3}, "unknown generation argument 'max_token'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        GenerateParams().override(arguments)


@pytest.mark.parametrize("arguments", [{"logprobs": 5}, {"repetition_penalty": 1.2}])
def test_what_the_engine_lacks_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(NotAvailableError):
        GenerateParams().override(arguments)


def test_none_keeps_the_default() -> None:
    defaults = GenerateParams(temperature=0.7, max_tokens=9)
    assert defaults.override({"temperature": None, "max_tokens": None, "top_k": 3}) == GenerateParams(
        temperature=0.7, max_tokens=9, top_k=3
    )


def test_an_empty_prompt_is_refused(llama: Made) -> None:
    with pytest.raises(EngineError, match="at least one token"):
        generate(llama[0], [])


def test_logprobs_of_given_tokens(llama: Made) -> None:
    path, model = llama
    tokens = [4, 13, 5, 17, 20, 21]

    async def call() -> torch.Tensor:
        async with engine(path) as made:
            with pytest.raises(EngineError, match="2 to 64 tokens"):
                await made.logprobs([1])
            return (await asyncio.gather(made.logprobs(tokens, temperature=0.5), made.generate("1+1=")))[0]

    got = run(call())
    whole = Experience(tokens=torch.tensor(tokens), prompt_length=1)
    assert (got - recomputed(model, whole, temperature=0.5)).abs().max() <= 1e-5
