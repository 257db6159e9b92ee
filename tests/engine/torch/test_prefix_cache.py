"""A further turn computes only what is new, and nobody can tell from the samples."""

from __future__ import annotations

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


def conversations(batch: RunningBatch, *, system: int, turns: int = 4, n: int = 2, reply: int = 37) -> list[Sample]:
    """Return the samples of three conversations with one beginning; each continues from its first sample."""
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
def test_the_cache_changes_no_bit_with_fixed_shapes(decoder: tuple[Path, Decoder], system: int, blocks: int) -> None:
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


def test_counters_say_what_was_found(models: dict[str, Made]) -> None:
    """A prompt of 100 tokens, twice, is three blocks and a rest; so are 20 tokens of an answer and 30 of a question."""
    path, _ = models["qwen2"]
    decoder = make_decoder(path, max_model_len=LENGTH)
    batch = batch_of((path, decoder), prefix_bytes=ROOMY)
    assert batch.prefixes is not None
    totals = batch.prefixes.totals
    first = text(100, 1)
    params = GenerateParams(n=3, max_tokens=29, ignore_eos=True)
    (sample, *_) = run_all(batch, make_requests([first], [params]))
    assert (totals.lookup_tokens, totals.hit_tokens, totals.evicted_blocks) == (100, 0, 0)
    assert batch.prefixes.num_blocks == 3 + 3, "128 of the 129 tokens have keys: each answer fills a block of its own"
    run_all(batch, make_requests([first], [params]))
    assert (totals.lookup_tokens, totals.hit_tokens) == (200, 96)
    assert batch.prefixes.num_blocks == 6, "the same answers once more are there already"
    run_all(batch, make_requests([first + sample.tokens + text(30, 2)], [params]))
    assert (totals.lookup_tokens, totals.hit_tokens) == (200 + 159, 96 + 128)
    run_all(batch, make_requests([first[:96]], [params]))
    assert totals.hit_tokens == 96 + 128 + 64, "the last token is computed, for its logits"
    assert totals.bypassed_tokens == 0


def test_prompts_that_come_together_share_their_beginning(models: dict[str, Made]) -> None:
    path, _ = models["llama"]
    decoder = make_decoder(path, max_model_len=LENGTH)
    prompts = [text(64, 1) + text(20 + number, number) for number in range(4)] + [text(64, 2)]
    params = [GenerateParams(n=1, max_tokens=5, ignore_eos=True)] * 5
    wanted = run_all(batch_of((path, decoder), prefix_bytes=0), make_requests(prompts, params))
    batch = batch_of((path, decoder), prefix_bytes=ROOMY)
    assert largest_difference(wanted, run_all(batch, make_requests(prompts, params))) <= 1e-6
    assert batch.prefixes is not None and batch.prefixes.totals.hit_tokens == 3 * 64


def test_rows_of_a_request_that_waits_for_slots_find_their_prompt(models: dict[str, Made]) -> None:
    """More samples than slots: the later ones take the first ones' prefill, with or without a cache."""
    path, _ = models["llama"]
    decoder = make_decoder(path, max_model_len=LENGTH)
    params = [GenerateParams(n=12, max_tokens=40, ignore_eos=True)] * 2
    prompts = [text(70, 1), text(70, 1)[:64] + text(9, 3)]
    for is_fixed in (False, True):
        made = [batch_of((path, decoder), prefix_bytes=b, is_fixed=is_fixed) for b in (0, ROOMY)]
        wanted, got = (run_all(batch, make_requests(prompts, params)) for batch in made)
        assert largest_difference(wanted, got) <= (0 if is_fixed else 1e-6)
        assert made[1].prefixes is not None and made[1].prefixes.totals.lookup_tokens == 143


@pytest.mark.parametrize("is_fixed", [False, True])
def test_blocks_of_other_weights_are_not_used(models: dict[str, Made], is_fixed: bool) -> None:
    """A row that new weights continued is not kept either: its keys are of both."""
    path, _ = models["qwen2"]
    decoder = make_decoder(path, max_model_len=LENGTH)
    batch = batch_of((path, decoder), prefix_bytes=ROOMY, is_fixed=is_fixed)
    assert batch.prefixes is not None
    params = GenerateParams(n=1, max_tokens=70, ignore_eos=True)
    (request,) = make_requests([text(40, 1)], [params])
    with torch.no_grad():
        batch.admit(request.rows(), model_version=3)
        batch.step()
        batch.drop_prefixes()
        assert (batch.prefixes.num_blocks, held_bytes(batch)) == (0, 0)
        batch.go_on_with(4)
        run_all(batch, [])
    assert batch.prefixes.num_blocks == 0
    (again,) = make_requests([text(40, 1)], [params])
    with torch.no_grad():
        batch.admit(again.rows(), model_version=4)
        batch.admit(make_requests([text(40, 1) + [5]], [params])[0].rows(), model_version=5)
    assert batch.prefixes.totals.hit_tokens == 0, "version 5 does not find the blocks of version 4"
    batch.clear()
    assert held_bytes(batch) == batch.prefixes.num_bytes == 0


def test_bfloat16_differs_by_rounding_only(models: dict[str, Made]) -> None:
    path, _ = models["qwen3"]
    decoder = make_decoder(path, max_model_len=LENGTH, dtype=torch.bfloat16)
    prompts = [text(600, 1) + text(20, number) for number in range(3)]
    params = [GenerateParams(n=1, max_tokens=2, ignore_eos=True, temperature=0)] * 3
    for is_fixed in (False, True):
        made = [batch_of((path, decoder), prefix_bytes=b, is_fixed=is_fixed) for b in (0, ROOMY)]
        wanted, got = (run_all(batch, make_requests(prompts, params)) for batch in made)
        assert largest_difference(wanted, got) <= (0 if is_fixed else 3e-2)
