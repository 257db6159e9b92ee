"""Steps as a device takes them: tokens read back a step late, over static buffers, without waiting."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from tests.engine.torch.batches import largest_difference, make_batch, make_decoder, make_requests, run_all
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.vocabulary import Drawable
from trinity.engine.sampler import sample, uniforms
from trinity.engine.torch.captured import StaticDecoding
from trinity.engine.torch.fast_decoder import FastDecoder
from trinity.engine.torch.kv_cache import KVCache
from trinity.engine.torch.library_attention import fused_attention
from trinity.engine.torch.request import Request
from trinity.engine.torch.shared_prompts import Group
from trinity.engine.torch.slots import Slots
from trinity.utils.products import Weight

Made = tuple[Path, PreTrainedModel]
PARAMS = [
    GenerateParams(n=3, max_tokens=20, temperature=1.3),
    GenerateParams(n=1, max_tokens=9, ignore_eos=True),
    GenerateParams(n=4, max_tokens=25, stop=["1", "ab"], min_tokens=3, top_k=20),
    GenerateParams(n=2, max_tokens=30, temperature=0, ignore_eos=True),
    GenerateParams(n=2, max_tokens=1, top_p=0.8),
]
PROMPTS = [[5, 6, 7], [9] * 34, [5, 6, 7, 8], list(range(3, 20)), [11]]


def requests() -> list[Request]:
    return make_requests(PROMPTS, PARAMS)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_tokens_that_are_read_late_are_the_same(llama: Made, is_fixed: bool) -> None:
    """A row that has ended takes one more token, which nobody sees; a full sequence does not outgrow the cache."""
    path, _ = llama
    decoder = make_decoder(path, max_model_len=64)
    made = {}
    for lag in (0, 1):
        batch = make_batch(path, decoder, 5, max_length=64, stop_ids=range(1, 12), is_fixed=is_fixed, lag=lag)
        made[lag] = run_all(batch, requests())
        assert batch.counts.generated_tokens == sum(len(sample_.tokens) for sample_ in made[lag])
        assert batch.counts.samples == sum(params.n for params in PARAMS)
    assert largest_difference(made[0], made[1]) == 0
    assert {sample_.finish_reason for sample_ in made[0]} == {"stop", "length"}


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
def test_static_buffers_change_no_bit(llama: Made, is_fixed: bool, lag: int) -> None:
    path, _ = llama
    decoder = make_decoder(path, max_model_len=64)
    assert isinstance(decoder, FastDecoder)
    wanted = run_all(make_batch(path, decoder, 6, max_length=64, stop_ids=range(1, 12), is_fixed=is_fixed), requests())
    batch = make_batch(path, decoder, 6, max_length=64, stop_ids=range(1, 12), is_fixed=is_fixed, lag=lag)
    static = StaticDecoding(decoder, 6)
    batch._decode = static.decode
    assert largest_difference(wanted, run_all(batch, requests())) == 0
    assert static._steps and all(step.graph is None for step in static._steps.values())


def test_a_shape_that_comes_again_has_its_buffers(llama: Made) -> None:
    path, _ = llama
    decoder = make_decoder(path, max_model_len=64)
    assert isinstance(decoder, FastDecoder)
    batch = make_batch(path, decoder, 8, max_length=64)
    static = StaticDecoding(decoder, 8)
    batch._decode = static.decode
    params = GenerateParams(n=8, max_tokens=30, ignore_eos=True)
    run_all(batch, make_requests([[5, 6, 7]], [params]))
    assert len(static._steps) == 1, "one shape: eight rows, one width, one prompt"
    assert next(iter(static._steps.values())).num_calls == batch.counts.steps == 29


def test_cancelled_rows_leave_while_their_token_is_on_its_way(llama: Made) -> None:
    path, _ = llama
    decoder = make_decoder(path, max_model_len=64)
    batch = make_batch(path, decoder, 8, max_length=64, lag=1)
    gone, stays = make_requests([[5, 6], [7, 8]], [GenerateParams(n=2, max_tokens=20, ignore_eos=True)] * 2)
    with torch.no_grad():
        batch.admit([*gone.rows(), *stays.rows()], model_version=0)
        batch.step()
        gone.is_cancelled = True
        batch.drop_cancelled()
        assert batch.num_active == 2
        run_all(batch, [])
    alone = make_requests([[5, 6], [7, 8]], [GenerateParams(n=2, max_tokens=20, ignore_eos=True)] * 2)[1]
    wanted = run_all(make_batch(path, decoder, 8, max_length=64), [alone])
    assert not gone.samples
    assert largest_difference([stays.samples[0], stays.samples[1]], wanted) == 0


def test_an_update_in_flight_counts_the_tokens_that_are_on_their_way(llama: Made) -> None:
    path, _ = llama
    decoder = make_decoder(path, max_model_len=64)
    batch = make_batch(path, decoder, 4, max_length=64, lag=1)
    (request,) = make_requests([[5, 6]], [GenerateParams(n=1, max_tokens=10, ignore_eos=True)])
    with torch.no_grad():
        batch.admit(request.rows(), model_version=3)
        for _ in range(4):
            batch.step()
        batch.go_on_with(4)
        run_all(batch, [])
    assert request.samples[0].model_versions == (3,) * 5 + (4,) * 5


def on_device(decoder: FastDecoder, device: torch.device) -> None:
    """Let the decoder have tensors of the same shapes on `device`."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    def moved_any(value: torch.Tensor | Weight) -> torch.Tensor | Weight:
        return Weight(moved(value.plain())) if isinstance(value, Weight) else moved(value)

    decoder.device = device
    for name in ("cos", "sin", "embed", "head", "norm"):
        setattr(decoder, name, moved_any(getattr(decoder, name)))
    for index, layer in enumerate(decoder.layers):
        tensors: dict[str, Any] = {name: moved_any(value) for name, value in vars(layer).items() if value is not None}
        decoder.layers[index] = dataclasses.replace(layer, **tensors)


def test_a_step_waits_for_nothing(llama: Made) -> None:
    """On tensors without memory: whatever needs a value of theirs raises."""
    decoder = make_decoder(llama[0], max_model_len=300, dtype=torch.bfloat16)
    assert isinstance(decoder, FastDecoder)
    device = torch.device("meta")
    with torch.no_grad():

        def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        on_device(decoder, device)
        cache = KVCache(8, 300, is_fixed=False)
        cache.keys, cache.values = ([empty(8, 2, 300, 16) for _ in decoder.layers] for _ in range(2))
        cache.start, cache.shift = (empty(8, dtype=torch.long) for _ in range(2))
        prompts = ([empty(2, 2, 128, 16) for _ in decoder.layers] for _ in range(2))
        rows = empty(8, dtype=torch.long)
        group = Group(*prompts, empty(2, 1, 1, 128, dtype=torch.float32), rows, rows, 4)
        slots = Slots(8, drawable=Drawable(60, (), (1,)), device=device)
        logits = decoder.step(slots.token, slots.length - 1, cache=cache, width=300, groups=[group])
        assert logits.shape == (8, decoder.vocab_size) and logits.device == device
        tokens, logprobs = sample(logits, slots.sampling(slice(0, 8)), uniform=uniforms(slots.key, slots.length))
        slots.advance(slice(0, 8), tokens)
        assert logprobs.shape == (8,) and logprobs.dtype == torch.float32
        first, prefix = decoder.prefill(empty(2, 40, dtype=torch.long), rows[:2])
        assert first.shape == (2, decoder.vocab_size) and prefix.keys[1].shape == (2, 2, 40, 16)
        with pytest.raises(RuntimeError, match="meta tensors"):
            bool(tokens.any())


@pytest.mark.parametrize("num_blocks", [1, 1000])
def test_the_kernel_of_cuda_takes_and_gives_these_shapes(num_blocks: int) -> None:
    with FakeTensorMode():
        queries, keys = (torch.empty(2, 3, n, 64, dtype=torch.bfloat16, device="cuda") for n in (5, 2048))
        bias = torch.empty(2, 1, 1, 2048, device="cuda")
        out, lse = fused_attention(queries, keys, keys, bias, num_blocks=num_blocks)
    assert out.shape == (2, 3, 5, 64) and lse.shape == (2, 3, 5, 1)
    assert out.dtype == lse.dtype == torch.float32
