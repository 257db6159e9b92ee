"""A further turn computes only what is new, and nobody can tell from the samples."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.torch.batches import largest_difference, make_batch, make_decoder, make_requests, run_all
from tests.tiny import tiny_model
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.sample import Sample
from trinity.engine.torch.batch import RunningBatch
from trinity.engine.torch.decoder import Decoder
from trinity.engine.torch.loading import load_decoder
from trinity.engine.torch.prefix_cache import BLOCK_TOKENS

Made = tuple[Path, PreTrainedModel]
FAMILIES = ("llama", "qwen2", "qwen3")
LENGTH = 2048
ROOMY = 1 << 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    made = {}
    for family in FAMILIES:
        path = tmp_path_factory.mktemp(family)
        made[family] = path, tiny_model(path, family, max_position_embeddings=LENGTH)
    return made


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request: pytest.FixtureRequest, models: dict[str, Made]) -> Iterator[tuple[Path, Decoder]]:
    path, _ = models[request.param]
    yield path, make_decoder(path, max_model_len=LENGTH)


def text(length: int, seed: int) -> list[int]:
    return torch.randint(3, 60, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def batch_of(made: tuple[Path, Decoder], *, prefix_bytes: int, **settings: Any) -> RunningBatch:
    path, decoder = made
    return make_batch(path, decoder, 8, max_length=LENGTH, prefix_bytes=prefix_bytes, **settings)


def conversations(batch: RunningBatch, *, system: int = 40, turns: int = 4, n: int = 2, reply: int = 37) -> list[Sample]:
    """Return the samples of three conversations with one beginning; each goes on from its first sample."""
    histories = [text(system, 7) + text(10 + 30 * number, number) for number in range(3)]
    done = []
    for turn in range(turns):
        params = [GenerateParams(n=n, max_tokens=reply + number, ignore_eos=True) for number in range(3)]
        samples = run_all(batch, make_requests(histories, params))
        done += samples
        for number, history in enumerate(histories):
            history += samples[number * n].tokens + text(13, 100 * turn + number)
    return done


def held_bytes(batch: RunningBatch) -> int:
    """Return the memory of the blocks in the tree, counted by walking over it."""
    assert batch.prefixes is not None
    waiting, found = [batch.prefixes._root], 0
    while waiting:
        node = waiting.pop()
        waiting += node.children.values()
        found += 0 if node.states is None else node.states.untyped_storage().nbytes()
    return found


@pytest.mark.parametrize("system", [40, 700])
@pytest.mark.parametrize("blocks", [10_000, 9, 1])
def test_the_cache_changes_no_bit_with_fixed_shapes(
    decoder: tuple[Path, Decoder], system: int, blocks: int
) -> None:
    limit = blocks * BLOCK_TOKENS * decoder[1].kv_bytes_per_token
    wanted = conversations(batch_of(decoder, prefix_bytes=0, is_fixed=True), system=system)
    batch = batch_of(decoder, prefix_bytes=limit, is_fixed=True)
    assert largest_difference(wanted, conversations(batch, system=system)) == 0
    assert batch.prefixes is not None and batch.prefixes.totals.hit_tokens > 0
    assert held_bytes(batch) == batch.prefixes.num_bytes <= limit
    assert (batch.prefixes.num_bytes == limit) == (blocks < 10_000)


@pytest.mark.parametrize(("system", "bound"), [(40, 1e-6), (700, 4e-6)])
@pytest.mark.parametrize("blocks", [10_000, 9])
def test_the_cache_changes_only_the_order_of_sums_otherwise(
    decoder: tuple[Path, Decoder], system: int, bound: float, blocks: int
) -> None:
    limit = blocks * BLOCK_TOKENS * decoder[1].kv_bytes_per_token
    wanted = conversations(batch_of(decoder, prefix_bytes=0), system=system)
    batch = batch_of(decoder, prefix_bytes=limit)
    assert largest_difference(wanted, conversations(batch, system=system)) <= bound
    assert batch.prefixes is not None and batch.prefixes.totals.hit_tokens > 0
    assert held_bytes(batch) == batch.prefixes.num_bytes <= limit
