"""Decoding steps by compiled kernels: their samples are those of the library's operations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.torch.batches import CPU, largest_difference, make_batch, make_requests, run_all
from tests.tiny import tiny_model
from trinity.common.errors import EngineError
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.torch.fast_decoder import FastDecoder
from trinity.engine.torch.loading import load_decoder
from trinity.engine.torch.request import Request

pytest.importorskip("numba")
LENGTHS = (1, 3, 33, 40, 40, 150)


def requests() -> list[Request]:
    """Return groups of prompts of several widths; samples end at different steps, so that rows move to other slots."""
    rows = torch.randint(3, 60, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [row[:length] for row, length in zip(rows, LENGTHS, strict=True)]
    params = [
        GenerateParams(n=3, max_tokens=5 + 7 * number, min_tokens=4 * number, temperature=1.0 + number / 8)
        for number in range(len(prompts))
    ]
    return make_requests(prompts, params)


def decoder_of(path: Path, dtype: torch.dtype) -> FastDecoder:
    decoder = load_decoder(str(path), dtype=dtype, device=CPU, max_model_len=256, is_exact=False)
    assert isinstance(decoder, FastDecoder) and not decoder.is_compiled, "too small to earn it"
    return decoder


@pytest.mark.parametrize(("family", "head_size"), [("llama", 32), ("qwen2", 64), ("qwen3", 96)])
def test_samples_are_those_of_the_library(family: str, head_size: int, tmp_path: Path) -> None:
    """With and without shared prompts, biases, and norms of queries and keys."""
    tiny_model(tmp_path, family, max_position_embeddings=256, head_dim=head_size)
    decoder = decoder_of(tmp_path, torch.float32)
    plain, compiled = (
        run_all(make_batch(tmp_path, decoder, 7, max_length=256, is_compiled=is_compiled), requests())
        for is_compiled in (False, True)
    )
    assert largest_difference(plain, compiled) < 3e-6


def test_bfloat16_rounds_once(tmp_path: Path) -> None:
    """Log-probabilities are no further from those in float32 than the library's are."""
    tiny_model(tmp_path, "qwen3", max_position_embeddings=256, head_dim=64)
    exact, half = decoder_of(tmp_path, torch.float32), decoder_of(tmp_path, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 60, (4, 9), generator=generator)
    errors = []
    for is_compiled in (False, True):
        logits = []
        for decoder in (exact, half):
            batch = make_batch(tmp_path, decoder, 4, max_length=256, is_compiled=is_compiled and decoder is half)
            prompts = [batch.prefill.run([tuple(row.tolist())], 0)[tuple(row.tolist())][1] for row in tokens]
            for slot, prompt in enumerate(prompts):
                batch.cache.share([slot], prompt)
            steps = [
                batch._decode(tokens[:, column], torch.full((4,), 9 + column), cache=batch.cache, width=32)
                for column in range(9)
            ]
            logits.append(torch.stack(steps).log_softmax(-1))
        errors.append((logits[0] - logits[1]).square().mean())
    assert errors[1] < 1.2 * errors[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_end_the_run(value: float, tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama", max_position_embeddings=256, head_dim=32)
    decoder = decoder_of(tmp_path, torch.float32)
    decoder.norm[0] = value
    batch = make_batch(tmp_path, decoder, 2, max_length=256, is_compiled=True)
    with pytest.raises(EngineError, match="E5605"):
        run_all(batch, make_requests([[3, 4]], [GenerateParams(n=2, max_tokens=4)]))
