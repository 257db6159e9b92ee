"""The same code on a CUDA device."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import engine, recomputed, response, run
from trinity.common.experience import Experience

Made = tuple[Path, PreTrainedModel]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_sampled_logprobs_are_those_of_a_forward_pass(
    request: pytest.FixtureRequest, family: str, is_deterministic: bool
) -> None:
    path, model = request.getfixturevalue(family)

    async def call() -> list[list[Experience]]:
        async with engine(path, device="cuda", is_deterministic=is_deterministic) as made:
            calls = [
                made.generate(f"{n}+1=", n=3, max_tokens=20, sample_ids=[f"{n}/{i}" for i in "abc"]) for n in range(9)
            ]
            first = [exp for group in await asyncio.gather(*calls) for exp in group]
            await made.update_weights(dict(model.named_parameters()), version=1)
            calls = [
                made.generate(f"{n}+1=", n=3, max_tokens=20, sample_ids=[f"{n}/{i}" for i in "abc"]) for n in range(9)
            ]
            return [first, [exp for group in await asyncio.gather(*calls) for exp in group]]

    first, second = run(call())
    for exp in first:
        assert (exp.logprobs - recomputed(model, exp)).abs().max() <= 1e-4
    assert [response(exp) for exp in first] == [response(exp) for exp in second]


def test_bfloat16_is_the_default_number_type(llama: Made) -> None:
    async def call() -> torch.dtype:
        async with engine(llama[0], device="auto", dtype="auto") as made:
            await made.generate("1+1=", max_tokens=8)
            return made._ready()[0].targets()["model.norm.weight"].dtype

    assert run(call()) == torch.bfloat16
