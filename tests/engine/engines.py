"""A prepared torch engine for the length of a `with` block, and recomputation by Hugging Face's own forward."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trinity.common.config.model import ModelConfig
from trinity.common.experience import Experience
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine

R = TypeVar("R")


def run(call: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine; no test waits longer than a minute."""
    return asyncio.run(asyncio.wait_for(call, 60))


@contextlib.asynccontextmanager
async def engine(
    path: Path, *, model: dict[str, Any] | None = None, params: GenerateParams | None = None, **settings: Any
) -> AsyncIterator[TorchEngine]:
    """Yield a prepared float32 engine of up to 64 tokens; `settings` as in `EngineSettings`."""
    config = ModelConfig.model_validate({"model_path": str(path), "max_model_len": 64} | (model or {}))
    made = TorchEngine(
        EngineSettings(
            model=config,
            params=params or GenerateParams(),
            **{"dtype": "float32", "device": "cpu", "timeout_s": 30.0, "max_num_seqs": 16} | settings,
        )
    )
    await made.prepare()
    try:
        yield made
    finally:
        await made.shutdown()


@torch.no_grad()
def recomputed(model: PreTrainedModel, experience: Experience, *, temperature: float = 1.0) -> Tensor:
    """Return the logprobs [R] of the response by a full forward pass of the Hugging Face model."""
    logits = model(experience.tokens[None]).logits[0, :-1].float() / temperature
    every = torch.log_softmax(logits, -1).gather(1, experience.tokens[1:, None])[:, 0]
    return every[experience.prompt_length - 1 :]


def response(experience: Experience) -> list[int]:
    """Return the response tokens."""
    return experience.tokens[experience.prompt_length :].tolist()
