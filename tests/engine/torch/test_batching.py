"""Continuous batching: requests join and leave, and each gets what it would get alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.engine.engines import engine, recomputed, response, run
from trinity.common.experience import Experience
from trinity.engine.torch.engine import TorchEngine

Made = tuple[Path, PreTrainedModel]
PROMPTS = ["1=", "12+34=", "a" * 20, "5*6-7+8=", "zz", "12+34=", "q" * 33, "0"]


def ask(made: TorchEngine, index: int) -> asyncio.Future:
    return made.generate(
        PROMPTS[index],
        n=1 + index % 3,
        max_tokens=3 + 4 * index,
        ignore_eos=True,
        temperature=(1.0, 0.5, 2.0)[index % 3],
        top_k=(-1, 5)[index % 2],
        sample_ids=[f"1/{index}/{run}/0" for run in range(1 + index % 3)],
    )


async def staggered(path: Path, **settings: int) -> tuple[list[list[Experience]], dict[str, float]]:
    """Ask one after the other while earlier ones are still under way."""
    async with engine(path, **settings) as made:
        tasks = []
        for index in range(len(PROMPTS)):
            tasks.append(asyncio.ensure_future(ask(made, index)))
            await asyncio.sleep(0.002)
        return await asyncio.gather(*tasks), await made.stats()


async def alone(path: Path) -> list[list[Experience]]:
    async with engine(path) as made:
        return [await ask(made, index) for index in range(len(PROMPTS))]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("max_num_seqs", [3, 16])
def test_requests_in_a_batch_get_what_they_get_alone(
    request: pytest.FixtureRequest, family: str, max_num_seqs: int
) -> None:
    path, model = request.getfixturevalue(family)
    together, stats = run(staggered(path, max_num_seqs=max_num_seqs))
    single = run(alone(path))
    for group, wanted in zip(together, single, strict=True):
        assert [response(exp) for exp in group] == [response(exp) for exp in wanted]
    for index, group in enumerate(together):
        heat = (1.0, 0.5, 2.0)[index % 3]
        assert all((exp.logprobs - recomputed(model, exp, temperature=heat)).abs().max() <= 1e-5 for exp in group)
    assert stats["samples"] == sum(1 + index % 3 for index in range(len(PROMPTS)))
    assert stats["generated_tokens"] == sum(exp.response_length for group in together for exp in group)
    assert stats["num_slots"] == max_num_seqs


def test_steps_do_not_wait_for_the_longest(llama: Made) -> None:
    """With two slots, one long and many short requests take the steps of the long one: freed slots are refilled."""

    async def call() -> float:
        async with engine(llama[0], max_num_seqs=2) as made:
            long = made.generate("1=", max_tokens=41, ignore_eos=True)
            short = [made.generate("2=", max_tokens=5, ignore_eos=True) for _ in range(8)]
            await asyncio.gather(long, *short)
            return (await made.stats())["steps"]

    assert run(call()) <= 44


def test_equal_prompts_are_prefilled_once(llama: Made) -> None:
    async def call() -> dict[str, float]:
        async with engine(llama[0]) as made:
            await asyncio.gather(*(made.generate(prompt, max_tokens=2, n=2) for prompt in ["1+1=", "1+1=", "2+2="]))
            return await made.stats()

    stats = run(call())
    assert stats["prefix_groups"] == 2 and stats["prompt_tokens"] == 8


def test_a_group_larger_than_the_slots_is_prefilled_once(llama: Made) -> None:
    async def call() -> tuple[list[Experience], float]:
        async with engine(llama[0], max_num_seqs=3) as made:
            samples = await made.generate("1+1=", n=10, max_tokens=6, temperature=2.0)
            return samples, (await made.stats())["prefix_groups"]

    samples, prefills = run(call())
    assert prefills == 1 and len(samples) == 10
    assert all((exp.logprobs - recomputed(llama[1], exp, temperature=2.0)).abs().max() <= 1e-5 for exp in samples)


def test_a_cancelled_request_frees_its_slot(llama: Made) -> None:
    async def call() -> float:
        async with engine(llama[0], max_num_seqs=1, model={"max_model_len": 512}) as made:
            long = asyncio.ensure_future(made.generate("1=", max_tokens=500, ignore_eos=True))
            await asyncio.sleep(0.02)
            long.cancel()
            await made.generate("2=", max_tokens=4, ignore_eos=True)
            return (await made.stats())["generated_tokens"]

    assert run(call()) < 450


def test_several_event_loops_share_an_engine(llama: Made) -> None:
    async def call() -> tuple[list[Experience], list[Experience]]:
        async with engine(llama[0]) as made:
            ask_one = made.generate("3+4=", sample_ids=["a"], max_tokens=9)
            other = asyncio.to_thread(lambda: asyncio.run(made.generate("3+4=", sample_ids=["a"], max_tokens=9)))
            return await ask_one, await other

    here, there = run(call())
    assert response(here[0]) == response(there[0])
