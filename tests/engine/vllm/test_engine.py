"""Samples, log-probabilities and errors of the vLLM engine are those of the torch engine."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import engine, recomputed, response, run
from tests.engine.vllm.conftest import MAX_MODEL_LEN, Served
from trinity.common.errors import DeadlineError, EngineError
from trinity.common.experience import Experience
from trinity.engine.vllm.engine import VLLMEngine

pytestmark = pytest.mark.slow

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"n": 4, "max_tokens": 12, "sample_ids": ["a", "b", "c", "d"]},
    "greedy": {"temperature": 0.0, "max_tokens": 6},
    "temperature": {"n": 3, "temperature": 0.6, "max_tokens": 12, "seed": 5},
    "top-k and top-p": {"n": 3, "temperature": 1.3, "top_k": 6, "top_p": 0.8, "max_tokens": 12, "seed": 6},
    "minimum length": {"n": 4, "temperature": 2.0, "min_tokens": 8, "max_tokens": 12, "seed": 7},
    "stop strings": {"n": 6, "temperature": 3.0, "stop": ["a", "b", "1", "(", "Z"], "max_tokens": 40, "seed": 8},
    "stop strings after a minimum": {
        "n": 6, "temperature": 3.0, "stop": ["a", "b", "1", "(", "Z"], "min_tokens": 10, "max_tokens": 40, "seed": 9,
    },
    "stop strings after the first token": {
        "n": 12, "temperature": 3.0, "stop": list("ab1(Zcdefgh23"), "min_tokens": 1, "max_tokens": 40, "seed": 8,
    },
    "on after the end": {"n": 3, "temperature": 3.0, "ignore_eos": True, "max_tokens": 60, "seed": 10},
    "to the end of the sequence": {"prompt": "1" * (MAX_MODEL_LEN - 3), "n": 2, "ignore_eos": True, "seed": 11},
}  # fmt: skip


def facts(experience: Experience) -> list[Any]:
    """Return all that must not depend on the engine but the log-probabilities."""
    own = experience.info
    return [experience.tokens.tolist(), experience.truncate_status, experience.prompt_text, experience.response_text,
            own["finish_reason"], own["model_version"]]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_samples_are_those_of_the_torch_engine(vllm: Served, tied: tuple[Path, PreTrainedModel], way: str) -> None:
    made, model = vllm
    arguments = {"prompt": "12+34="} | WAYS[way]

    async def both() -> tuple[list[Experience], list[Experience]]:
        async with engine(tied[0], model={"max_model_len": MAX_MODEL_LEN}) as other:
            return await made.generate(**arguments), await other.generate(**arguments)

    ours, theirs = run(both())
    assert [facts(exp) for exp in ours] == [facts(exp) for exp in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.logprobs, other.logprobs, atol=1e-5)
        temperature = arguments.get("temperature", 1.0) or 1.0
        assert torch.allclose(one.logprobs, recomputed(model, one, temperature=temperature), atol=1e-5)
    if way == "stop strings":
        assert {exp.info["finish_reason"] for exp in ours} == {"stop"}
    if way == "stop strings after the first token":
        assert any(exp.response_text[:1] in WAYS[way]["stop"] for exp in ours), "one that vLLM alone would have ended"
        assert min(len(response(exp)) for exp in ours) >= 2
    if way == "minimum length":
        assert min(len(response(exp)) for exp in ours) >= 8


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_a_forward_pass(vllm: Served, temperature: float) -> None:
    made, model = vllm
    tokens = [4 + i % 50 for i in range(MAX_MODEL_LEN)]
    whole = Experience(tokens=torch.tensor(tokens), prompt_length=1, logprobs=torch.zeros(len(tokens) - 1))
    wanted = recomputed(model, whole, temperature=temperature)
    scored = run(made.logprobs(tokens, temperature=temperature))
    assert scored.dtype == torch.float32 and torch.allclose(scored, wanted, atol=1e-5)
    assert torch.allclose(run(made.logprobs(tokens[:2], temperature=temperature)), wanted[:1], atol=1e-5)


def test_a_conversation_becomes_an_experience(vllm: Served) -> None:
    made, model = vllm
    messages = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    made_of = run(made.convert_messages_to_experience(messages))
    assert made_of.response_text.startswith("2")
    assert torch.allclose(made_of.logprobs, recomputed(model, made_of), atol=1e-5)


def test_no_sample_is_lost_when_many_are_asked_for_at_once(vllm: Served) -> None:
    made, _ = vllm

    async def many() -> list[list[Experience]]:
        return await asyncio.gather(
            *(made.generate(f"{i}+1=", n=8, max_tokens=20, ignore_eos=True, seed=i) for i in range(12))
        )

    groups = run(many())
    assert [len(group) for group in groups] == [8] * 12
    assert {len(response(exp)) for group in groups for exp in group} == {20}
    assert {len(exp.logprobs) for group in groups for exp in group} == {20}


def test_a_call_that_nobody_waits_for_is_given_up(vllm: Served) -> None:
    made, _ = vllm
    before = made.settings

    async def late() -> float:
        made.settings = dataclasses.replace(before, timeout_s=0.05)
        with pytest.raises(DeadlineError, match="explorer.max_timeout"):
            await made.generate("1+1=", n=40, max_tokens=120, ignore_eos=True)
        made.settings = before
        cancelled = asyncio.ensure_future(made.generate("1+1=", n=40, max_tokens=120, ignore_eos=True))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        for _ in range(100):
            busy = await made.stats()
            await asyncio.sleep(0.05)
            if (await made.stats())["busy_s"] == busy["busy_s"]:
                return busy["generated_tokens"]
        raise AssertionError("the engine goes on")

    try:
        run(late())
    finally:
        made.settings = before
    assert len(run(made.generate("1+1=", n=2, max_tokens=3))) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"prompt": "1" * MAX_MODEL_LEN}, "E5608"),
        ({"prompt": []}, "E5602"),
        ({"prompt": "1", "n": 0}, "E5602"),
        ({"prompt": "1", "beam": 3}, "E5602"),
    ],
)
def test_bad_requests_are_refused_and_the_engine_goes_on(vllm: Served, arguments: dict[str, Any], code: str) -> None:
    made, _ = vllm
    with pytest.raises(EngineError) as caught:
        run(made.generate(**arguments))
    assert caught.value.code == code
    assert len(run(made.generate("1+1=", max_tokens=2))) == 1


def test_the_processes_run_as_a_CPU_needs_it(served: VLLMEngine) -> None:
    assert [worker["num_threads"] for worker in served.workers] == [1], "threads of OpenMP spin while they wait"
    assert [worker["dynamo"] for worker in served.workers] == ["1"], "the first logprob waits for no compiler"
    assert [worker["dtypes"] for worker in served.workers] == [["torch.float32"]], "float32 stays float32"
