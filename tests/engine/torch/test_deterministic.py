"""Deterministic mode: bit for bit the same, whatever the order of arrival and whoever else is in the batch."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import engine, recomputed, response, run
from trinity.common.experience import Experience
from trinity.engine.torch.engine import TorchEngine

Made = tuple[Path, PreTrainedModel]
Results = dict[str, tuple[list[int], torch.Tensor]]


async def one(made: TorchEngine, task: int, delay_s: float = 0.0, participant: str | None = None) -> list[Experience]:
    await asyncio.sleep(delay_s)
    return await made.generate(
        f"{task}+{task * 7}=",
        n=3,
        max_tokens=4 + task % 9,
        temperature=1.3,
        sample_ids=[f"1/{task}/{run}/0" for run in range(3)],
        participant=participant,
    )


def bits(groups: list[list[Experience]], tasks: list[int]) -> Results:
    return {
        f"{task}/{index}": (response(exp), exp.logprobs)
        for task, group in zip(tasks, groups, strict=True)
        for index, exp in enumerate(group)
    }


def assert_equal(left: Results, right: Results) -> None:
    assert left.keys() == right.keys()
    for name, (tokens, logprobs) in left.items():
        assert tokens == right[name][0], name
        assert torch.equal(logprobs, right[name][1]), name


async def batch(path: Path, tasks: list[int], **settings: int) -> Results:
    async with engine(path, is_deterministic=True, **settings) as made:
        return bits(await asyncio.gather(*(one(made, task) for task in tasks)), tasks)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_order_of_submission_changes_no_bit(request: pytest.FixtureRequest, family: str) -> None:
    path, _ = request.getfixturevalue(family)
    tasks = list(range(14))
    wanted = run(batch(path, tasks, max_num_seqs=8))
    for seed in range(2):
        shuffled = random.Random(seed).sample(tasks, len(tasks))
        assert_equal(wanted, run(batch(path, shuffled, max_num_seqs=8)))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_neighbours_change_no_bit(request: pytest.FixtureRequest, family: str) -> None:
    path, model = request.getfixturevalue(family)
    small = run(batch(path, [3, 5], max_num_seqs=16))
    large = run(batch(path, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], max_num_seqs=16))
    assert_equal(small, {name: value for name, value in large.items() if name in small})


def test_arrival_in_time_changes_no_bit(llama: Made) -> None:
    """Participants that ask at random moments meet in one round."""

    async def call(seed: int) -> Results:
        delays = random.Random(seed)
        async with engine(llama[0], is_deterministic=True, max_num_seqs=8) as made:
            names = [f"runner {task}" for task in range(6)]
            for name in names:
                await made.join_round(name)
            calls = [one(made, task, delays.random() / 20, names[task]) for task in range(6)]
            return bits(await asyncio.gather(*calls), list(range(6)))

    wanted = run(call(0))
    for seed in range(1, 4):
        assert_equal(wanted, run(call(seed)))


def test_a_round_waits_for_every_participant_until_it_leaves(llama: Made) -> None:
    async def call() -> tuple[bool, int]:
        async with engine(llama[0], is_deterministic=True) as made:
            await made.join_round("a")
            await made.join_round("b")
            asked = asyncio.ensure_future(one(made, 1, participant="a"))
            await asyncio.sleep(0.1)
            was_waiting = not asked.done()
            await made.leave_round("b")
            return was_waiting, len(await asked)

    assert run(call()) == (True, 3)


def test_turns_of_conversations_meet_in_rounds(llama: Made) -> None:
    """Two turns each; the second turn begins for all at once, however long the first reply took to process."""

    async def rollout(made: TorchEngine, task: int, pause: float) -> list[Experience]:
        name = f"runner {task}"
        first = await one(made, task, participant=name)
        await asyncio.sleep(pause)
        follow = first[0].tokens.tolist() + [13]
        second = await made.generate(follow, max_tokens=6, sample_ids=[f"1/{task}/0/1"], participant=name)
        await made.leave_round(name)
        return [*first, *second]

    async def call(seed: int) -> Results:
        pauses = random.Random(seed)
        async with engine(llama[0], is_deterministic=True, max_num_seqs=16) as made:
            for task in range(5):
                await made.join_round(f"runner {task}")
            calls = [rollout(made, task, pauses.random() / 20) for task in range(5)]
            return bits(await asyncio.gather(*calls), list(range(5)))

    assert_equal(run(call(1)), run(call(2)))


def test_a_cancelled_participant_does_not_stop_the_others(llama: Made) -> None:
    async def call() -> int:
        async with engine(llama[0], is_deterministic=True) as made:
            await made.join_round("a")
            await made.join_round("b")
            gone = asyncio.ensure_future(one(made, 1, participant="a"))
            await asyncio.sleep(0.05)
            gone.cancel()
            await made.leave_round("a")
            return len(await one(made, 2, participant="b"))

    assert run(call()) == 3


def test_logprobs_are_those_of_a_forward_pass(llama: Made) -> None:
    async def call() -> list[Experience]:
        async with engine(llama[0], is_deterministic=True, max_num_seqs=4) as made:
            return [exp for group in await asyncio.gather(*(one(made, task) for task in range(5))) for exp in group]

    for exp in run(call()):
        assert (exp.logprobs - recomputed(llama[1], exp, temperature=1.3)).abs().max() <= 1e-5
