"""Prompts with images in vLLM: samples of the torch engine and of Hugging Face's forward pass, and new weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.vllm.conftest import settings
from tests.tiny_vision import asked, picture, reference_logprobs, tiny_vision_model
from trinity.common.experience import Experience
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine
from trinity.engine.vllm.engine import VLLMEngine

pytestmark = pytest.mark.slow

BOUND = 1e-5
ONE, TWO = picture(1), picture(2, 32, 24)
LONG = "how many shapes are there in the image? 12345"
CONVERSATIONS = [asked(LONG, ONE), asked(LONG, picture(7)), asked("and these?", ONE, TWO), asked(LONG, ONE)]
WIDE_HEADS: dict[str, Any] = {
    # vLLM's attention on a CPU takes heads of 32 numbers and more.
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
}


async def answers(engine: VLLMEngine | TorchEngine) -> list[Experience]:
    # With this seed no sample has the token of an image, for which the reference would want another one.
    arguments = {"n": 2, "max_tokens": 3, "seed": 6}
    made = await asyncio.gather(*(engine.chat(each, **arguments) for each in CONVERSATIONS))
    return [exp for each in made for exp in each]


def test_samples_of_prompts_with_images_are_those_of_the_torch_engine_before_and_after_an_update(
    tmp_path: Path, forked: None
) -> None:
    models = [tiny_vision_model(tmp_path / str(seed), seed=seed, **WIDE_HEADS) for seed in range(2)]
    given = settings(tmp_path / "0", is_multimodal=True)
    same = {"model": given.model, "dtype": "float32", "device": "cpu", "is_multimodal": True}

    async def both() -> list[list[Experience]]:
        ours, theirs = VLLMEngine(given), TorchEngine(EngineSettings(**same))
        found = []
        try:
            for engine in (ours, theirs):
                await engine.prepare()
            for version, model in enumerate(models):
                for engine in (ours, theirs):
                    if version:
                        await engine.update_weights(dict(model.named_parameters()), version=version)
                    found.append(await answers(engine))
            return found
        finally:
            for engine in (ours, theirs):
                await engine.shutdown()

    found = asyncio.run(both())
    for version, model in enumerate(models):
        for ours, theirs in zip(*found[2 * version : 2 * version + 2], strict=True):
            assert torch.equal(ours.tokens, theirs.tokens) and ours.prompt_length == theirs.prompt_length
            assert float((ours.logprobs - theirs.logprobs).abs().max()) < BOUND
            expected = reference_logprobs(model, tmp_path / str(version), ours).detach()
            assert float((ours.logprobs - expected).abs().max()) < BOUND
            assert ours.multi_modal_inputs is not None and theirs.multi_modal_inputs is not None
            assert all(torch.equal(ours.multi_modal_inputs[k], v) for k, v in theirs.multi_modal_inputs.items())
    assert any(not torch.equal(a.tokens, b.tokens) for a, b in zip(found[0], found[2], strict=True))
