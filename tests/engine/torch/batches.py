"""A batch over a decoder without an engine's thread: rows are admitted and stepped by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from trinity.common.models.generate_params import GenerateParams
from trinity.engine.sample import Sample
from trinity.engine.sampler import noise_key
from trinity.engine.torch.batch import RunningBatch
from trinity.engine.torch.decoder import Decoder
from trinity.engine.torch.loading import load_decoder
from trinity.engine.torch.request import Request

CPU = torch.device("cpu")


def make_decoder(path: Path, *, max_model_len: int, dtype: torch.dtype = torch.float32) -> Decoder:
    """Return the fast decoder of a folder."""
    decoder = load_decoder(str(path), dtype=dtype, device=CPU, max_model_len=max_model_len)
    assert decoder.kind == "fast"
    return decoder


def make_batch(path: Path, decoder: Decoder, num_slots: int, *, max_length: int, **settings: Any) -> RunningBatch:
    """Return an empty batch; `settings` as those of `RunningBatch`."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    kept = {"stop_ids": [1], "is_fixed": False} | settings
    return RunningBatch(decoder, num_slots, max_length=max_length, tokenizer=tokenizer, **kept)


def make_requests(prompts: Sequence[Sequence[int]], params: Sequence[GenerateParams]) -> list[Request]:
    """Return one request a prompt; nobody waits for its future."""
    loop = asyncio.new_event_loop()
    loop.close()
    made = []
    for number, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
        ids = tuple(f"{number}/{index}" for index in range(wanted.n))
        keys = [noise_key(1, name) for name in ids]
        future: asyncio.Future = asyncio.Future(loop=loop)
        made.append(Request(list(prompt), wanted, keys=keys, ids=ids, loop=loop, future=future))
    return made


@torch.no_grad()
def run_all(
    batch: RunningBatch, requests: Sequence[Request], *, watch: Callable[[], None] = lambda: None
) -> list[Sample]:
    """Return all samples; rows are admitted as slots get free, `watch` is called after each admission and step."""
    waiting = [row for request in requests for row in request.rows()]
    while waiting or batch.num_active:
        taken = waiting[: batch.num_free]
        waiting = waiting[len(taken) :]
        if taken:
            batch.admit(taken, model_version=0)
        else:
            batch.step()
        watch()
    assert all(request.is_finished for request in requests)
    return [request.samples[index] for request in requests for index in range(request.params.n)]


def largest_difference(first: Sequence[Sample], second: Sequence[Sample]) -> float:
    """Return the largest difference between log-probabilities of samples whose tokens are the same."""
    assert [sample.tokens for sample in first] == [sample.tokens for sample in second]
    assert [sample.finish_reason for sample in first] == [sample.finish_reason for sample in second]
    return max(float((a.logprobs - b.logprobs).abs().max()) for a, b in zip(first, second, strict=True))
