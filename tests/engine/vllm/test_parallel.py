"""A model on two of vLLM's workers: the tokens and the updates of one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.engine.engines import recomputed, response
from tests.engine.vllm.conftest import Served, settings
from tests.tiny import tiny_model
from trinity.common.experience import Experience
from trinity.engine.vllm.engine import VLLMEngine

pytestmark = pytest.mark.slow
PROMPTS = ["12+34=", "5*6=", "9-8=", "a+b=", "77+1=", "3-3="]


@pytest.fixture(scope="module", params=["tensor_parallel_size", "pipeline_parallel_size"])
def split(request: pytest.FixtureRequest, tied: tuple[Path, PreTrainedModel]) -> Iterator[VLLMEngine]:
    """An engine whose model is on two workers: half of each matrix, or half of the layers."""
    pytest.importorskip("vllm")
    made = VLLMEngine(settings(tied[0], engine_args={request.param: 2}))
    asyncio.run(made.prepare())
    yield made
    assert made._started is not None
    folder, prefix, owned = made._started.scratch.path, made._started.scratch.names.prefix, shared_by(made)
    assert any(file.name.endswith("-cpushm_0") for file in owned), "through which the workers add up"
    assert any(file.name.startswith(prefix) for file in owned), "their queues"
    assert any(file.is_socket() for file in folder.iterdir())
    asyncio.run(made.shutdown())
    assert not folder.exists() and not [file for file in owned if file.exists()]


def shared_by(made: VLLMEngine) -> list[Path]:
    """Return what the workers of an engine have mapped of shared memory."""
    maps = [Path(f"/proc/{worker['pid']}/maps").read_text().splitlines() for worker in made.workers]
    names = {line.split(maxsplit=5)[-1] for lines in maps for line in lines}
    return [Path(name) for name in names if name.startswith("/dev/shm/") and "(deleted)" not in name]


async def sampled(made: VLLMEngine, seed: int) -> list[Experience]:
    """Return two samples of every prompt, all asked for at once."""
    arguments: dict[str, Any] = {"n": 2, "max_tokens": 12, "ignore_eos": True, "seed": seed}
    answers = await asyncio.gather(*(made.generate(prompt, **arguments) for prompt in PROMPTS))
    return [experience for answer in answers for experience in answer]


def test_two_workers_sample_what_one_does_before_and_after_an_update(
    split: VLLMEngine, vllm: Served, tmp_path: Path
) -> None:
    one, model = vllm
    other = tiny_model(tmp_path, "llama", seed=9, head_dim=32)

    async def both(seed: int) -> tuple[list[Experience], list[Experience]]:
        return await sampled(one, seed), await sampled(split, seed)

    for version, source in ((1, other), (2, model)):
        weights = dict(source.named_parameters())
        for made in (one, split):
            asyncio.run(made.update_weights(weights, version=version))
        expected, found = asyncio.run(both(version))
        assert [response(exp) for exp in found] == [response(exp) for exp in expected]
        for experience in found:
            assert experience.info["model_version"] == version
            assert float((experience.logprobs - recomputed(source, experience)).abs().max()) < 1e-5
        scored = asyncio.run(split.logprobs(found[0].tokens.tolist()))
        assert float((scored[found[0].prompt_length - 1 :] - found[0].logprobs).abs().max()) < 1e-5
    assert split.model_version == 2 and len({worker["pid"] for worker in split.workers}) == 2
