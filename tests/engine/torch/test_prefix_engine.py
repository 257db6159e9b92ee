"""The prefix cache of an engine: its limit, its figures, new weights, and what goes past it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import engine, recomputed, run
from tests.tiny import tiny_model
from trinity.common.config.model import ModelConfig
from trinity.common.errors import ConfigError, OutOfMemoryError
from trinity.common.experience import Experience
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine
from trinity.engine.torch.loading import load_decoder
from trinity.engine.torch.prefix_cache import BLOCK_TOKENS
from trinity.utils.device import total_memory_bytes

Made = tuple[Path, PreTrainedModel]
LENGTH = 512


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("long")
    return path, tiny_model(path, "llama", max_position_embeddings=LENGTH)


async def talk(made: TorchEngine, name: str, *, turns: int = 4, n: int = 2) -> list[Experience]:
    """Return the samples of a conversation, each turn of which continues from the first sample before."""
    history = [ord(letter) % 50 + 3 for letter in f"{'the same beginning of all ' * 2}{name}"]
    done: list[Experience] = []
    for turn in range(turns):
        ids = [f"{name}/{turn}/{index}" for index in range(n)]
        done += await made.generate(
            history, n=n, max_tokens=35, ignore_eos=True, sample_ids=ids, participant=name, temperature=1.2
        )
        history = done[-n].tokens.tolist() + [5 + turn] * 9
    await made.leave_round(name)
    return done


async def talks(path: Path, **settings: Any) -> tuple[list[Experience], dict[str, float]]:
    async with engine(path, model={"max_model_len": LENGTH}, **settings) as made:
        names = [f"talk {number}" for number in range(5)]
        for name in names:
            await made.join_round(name)
        found = [exp for one in await asyncio.gather(*(talk(made, name) for name in names)) for exp in one]
        return found, await made.stats()


@pytest.mark.parametrize("limit", [None, 40_000])
def test_conversations_are_bit_for_bit_the_same_in_deterministic_mode(long: Made, limit: int | None) -> None:
    wanted, off = run(talks(long[0], is_deterministic=True, has_prefix_cache=False))
    got, on = run(talks(long[0], is_deterministic=True, prefix_cache_bytes=limit))
    for one, other in zip(wanted, got, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert one.logprobs is not None and other.logprobs is not None and torch.equal(one.logprobs, other.logprobs)
    assert not any(name.startswith("prefix_cache") or name.startswith("prefix_hit") for name in off)
    assert on["prefix_hit_tokens"] > (0.4 if limit is None else 0.05) * on["prefix_lookup_tokens"]
    assert 0 < on["prefix_cache_bytes"] <= (limit or 1 << 30)
    assert (on["prefix_evicted_blocks"] > 0) == (limit is not None)


def test_conversations_are_those_of_a_forward_pass(long: Made) -> None:
    got, stats = run(talks(long[0]))
    for exp in got:
        assert exp.logprobs is not None
        assert (exp.logprobs - recomputed(long[1], exp, temperature=1.2)).abs().max() <= 1e-5
    # The last answer and the question are new; of the rest at most a block is not kept.
    assert stats["prefix_hit_tokens"] > 0.6 * stats["prefix_lookup_tokens"]


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("version", [1, 0])
def test_new_weights_drop_the_cache(long: Made, in_flight: bool, version: int) -> None:
    """Also if they come under the number of the old ones."""
    path, model = long
    prompt = list(range(3, 53)) * 2

    async def call() -> tuple[list[Experience], dict[str, float], dict[str, float]]:
        async with engine(path, model={"max_model_len": LENGTH}, updates_in_flight=in_flight) as made:
            await made.generate(prompt, max_tokens=2, ignore_eos=True)
            before = await made.stats()
            weights = {name: tensor * 1.5 for name, tensor in model.state_dict().items()}
            await made.update_weights(weights, version=version)
            after = await made.stats()
            exps = await made.generate(prompt, max_tokens=2, ignore_eos=True)
            assert (await made.stats())["prefix_hit_tokens"] == 0
            return exps, before, after

    exps, before, after = run(call())
    assert before["prefix_cache_bytes"] == 3 * BLOCK_TOKENS * 512 and after["prefix_cache_bytes"] == 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        wanted = [recomputed(model, exp) for exp in exps]
        for parameter in model.parameters():
            parameter.div_(1.5)
    for exp, one in zip(exps, wanted, strict=True):
        assert exp.logprobs is not None and (exp.logprobs - one).abs().max() <= 1e-5


def test_what_goes_past_the_cache_is_counted(long: Made, gpt2: Made) -> None:
    """Log-probabilities of a sequence need all of its tokens; a family of the fallback keeps none."""

    async def scored() -> dict[str, float]:
        async with engine(long[0], model={"max_model_len": LENGTH}) as made:
            await made.generate(list(range(3, 53)) * 2, max_tokens=1)
            await made.logprobs(list(range(3, 53)) * 2)
            return await made.stats()

    async def other() -> dict[str, float]:
        async with engine(gpt2[0]) as made:
            for _ in range(2):
                await made.generate(list(range(3, 50)), max_tokens=2)
            return await made.stats()

    stats = run(scored())
    assert (stats["prefix_lookup_tokens"], stats["prefix_bypassed_tokens"]) == (100, 100)
    stats = run(other())
    assert (stats["prefix_lookup_tokens"], stats["prefix_bypassed_tokens"]) == (0, 94)


def test_the_limit_is_derived_or_reserved(long: Made) -> None:
    decoder = load_decoder(str(long[0]), dtype=torch.float32, device=torch.device("cpu"), max_model_len=64)
    total = total_memory_bytes(torch.device("cpu"))
    length = total // 10 // 512  # of the four tenths for both caches, a sequence takes one: 512 bytes a token

    def made(length: int, **settings: Any) -> TorchEngine:
        model = ModelConfig(model_path=str(long[0]), max_model_len=length)
        return TorchEngine(EngineSettings(model=model, max_num_seqs=8, **settings))

    assert made(64)._prefix_bytes(decoder, num_slots=8) == 8 * 64 * 512
    assert made(length)._prefix_bytes(decoder, num_slots=2) == int(total * 0.4) // 4
    assert made(length)._prefix_bytes(decoder, num_slots=4) < total // 10_000, "the slots have taken all"
    assert made(64, has_prefix_cache=False)._prefix_bytes(decoder, num_slots=8) == 0
    reserved = made(length, prefix_cache_bytes=total // 5)
    assert reserved._num_slots(decoder) in (1, 2) and reserved._prefix_bytes(decoder, num_slots=2) == total // 5
    with pytest.raises(OutOfMemoryError, match="beside explorer.rollout_model.prefix_cache_bytes"):
        made(length, prefix_cache_bytes=total)._num_slots(decoder)


def test_a_limit_below_a_block_is_refused(long: Made) -> None:
    async def call() -> None:
        async with engine(long[0], prefix_cache_bytes=BLOCK_TOKENS * 512 - 1):
            raise AssertionError("it must not start")

    with pytest.raises(ConfigError, match="explorer.rollout_model.prefix_cache_bytes must be at least 16384") as raised:
        run(call())
    assert raised.value.code == "E1897"
