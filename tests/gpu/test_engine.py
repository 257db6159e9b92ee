"""What a token's probability is: to the engine that sampled it, to its scoring, to the trainer, to Hugging Face."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.engine.engines import engine, run
from tests.gpu.parts import OTHERS, config_of, family_model, worker_on
from trinity.common.experience import Experience
from trinity.common.models.families import OWN
from trinity.trainer.batch import collate

PROMPTS = ["1+1=", "23*4=", "(7-5)*3+12=", "9-8=", "100-99+2="]
LARGEST = {"float32": 1e-4, "bfloat16": 0.15}
MEAN = {"float32": 1e-5, "bfloat16": 0.02}
# In bfloat16 a router may send a token to other experts than in float32.
EVERY = [
    (family, dtype) for family in (*OWN, *OTHERS) for dtype in LARGEST if (family, dtype) != ("mixtral", "bfloat16")
]
FEW = [("llama", "float32"), ("qwen3", "bfloat16"), ("gpt2", "bfloat16"), ("gemma", "float32"), ("phi", "float32")]
CASES = [("cpu", *case) for case in FEW] + [pytest.param("cuda", *case, marks=pytest.mark.gpu) for case in EVERY]


async def rollouts(
    path: Path, device: torch.device, dtype: str, *, strict: bool = False
) -> tuple[list[Experience], list[Tensor]]:
    """Return samples of every prompt, and what the engine's own scoring says of their responses."""
    async with engine(path, device=device.type, dtype=dtype, is_deterministic=strict) as made:
        calls = [
            made.generate(prompt, n=2, max_tokens=16, temperature=0.9, sample_ids=[f"{number}/{i}" for i in range(2)])
            for number, prompt in enumerate(PROMPTS)
        ]
        samples = [sample for group in await asyncio.gather(*calls) for sample in group]
        scored = [await made.logprobs(sample.tokens.tolist(), temperature=0.9) for sample in samples]
    return samples, [each[s.prompt_length - 1 :] for each, s in zip(scored, samples, strict=True)]


@torch.no_grad()
def eager(path: Path, device: torch.device, samples: list[Experience]) -> list[Tensor]:
    """Return the logprobs of the responses by Hugging Face's eager forward in float32, each row alone."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model.to(device).eval()
    found = []
    for sample in samples:
        tokens = sample.tokens.to(device)
        logprobs = torch.log_softmax(model(tokens[None]).logits[0, :-1] / 0.9, -1)
        found.append(logprobs.gather(1, tokens[1:, None])[sample.prompt_length - 1 :, 0].cpu())
    return found


def trained(path: Path, device: torch.device, dtype: str, samples: list[Experience]) -> list[Tensor]:
    """Return the logprobs of the responses by the trainer, all rows packed."""
    worker = worker_on(device, config_of(path, dtype=dtype, model={"temperature": 0.9}))
    rows = worker.actor.compute_log_prob(collate(samples))
    return [row[: sample.response_length] for row, sample in zip(rows, samples, strict=True)]


@pytest.mark.parametrize(("device", "family", "dtype"), CASES, indirect=["device"])
def test_engine_scoring_trainer_and_hugging_face_agree(
    tmp_path: Path, device: torch.device, family: str, dtype: str
) -> None:
    path = tmp_path / "model"
    family_model(path, family)
    samples, scored = run(rollouts(path, device, dtype))
    assert sum(sample.response_length for sample in samples) > 40
    sampled = [sample.logprobs for sample in samples if sample.logprobs is not None]
    wanted = torch.cat(eager(path, device, samples))
    assert float(wanted.std()) > 0.3, "the distribution is far from uniform"
    found = {"sampled": sampled, "scored": scored, "trained": trained(path, device, dtype, samples)}
    errors = {name: (torch.cat(values) - wanted).abs() for name, values in found.items()}
    assert {name: float(error.max()) for name, error in errors.items() if error.max() > LARGEST[dtype]} == {}
    assert {name: float(error.mean()) for name, error in errors.items() if error.mean() > MEAN[dtype]} == {}


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_deterministic_rounds_repeat_to_the_bit(tmp_path: Path, device: torch.device, family: str) -> None:
    path = tmp_path / "model"
    family_model(path, family)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run(rollouts(path, device, "float32", strict=True))[0] for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.logprobs, other.logprobs)
