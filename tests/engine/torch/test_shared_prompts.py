"""Prompts are kept once for all samples of a group, and nobody can tell from the samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.torch.batches import CPU, largest_difference, make_batch, make_decoder, make_requests, run_all
from tests.tiny import tiny_model
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.sample import Sample
from trinity.engine.torch.attention import EXACT_KEYS, NumberTypes, Part, attend, attend_causal
from trinity.engine.torch.library_attention import fused_attention
from trinity.engine.torch.request import Request
from trinity.engine.torch.shared_prompts import Prefix, SharedPrompts, rounded, span_of

Made = tuple[Path, PreTrainedModel]
TYPES = NumberTypes.of(torch.float32, CPU)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("long")
    return path, tiny_model(path, "qwen3", max_position_embeddings=2048)


def prompt(length: int) -> list[int]:
    return torch.randint(3, 60, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def groups(*lengths: int, n: int = 4, **params: int) -> list[Request]:
    """Return a request of `n` samples for a prompt of each length; the samples end at different steps."""
    wanted = [
        GenerateParams(n=n, max_tokens=12 + 3 * number, ignore_eos=True, **params) for number in range(len(lengths))
    ]
    return make_requests([prompt(length) for length in lengths], wanted)


def forward(model: PreTrainedModel, made: list[Request], samples: list[Sample]) -> float:
    """Return the largest difference from the log-probabilities of Hugging Face's forward pass."""
    prompts = [request.prompt for request in made for _ in range(request.params.n)]
    errors = []
    with torch.no_grad():
        for start, sample in zip(prompts, samples, strict=True):
            tokens = torch.tensor([start + sample.tokens])
            wanted = torch.log_softmax(model(tokens).logits[0, len(start) - 1 : -1], -1)
            wanted = wanted.gather(1, tokens[0, len(start) :, None])[:, 0]
            errors.append(float((sample.logprobs - wanted).abs().max()))
    return max(errors)


@pytest.mark.parametrize(
    ("lengths", "bound"), [((3, 64, 65, 200, 200), 0.0), ((EXACT_KEYS, EXACT_KEYS + 1, 700, 1600, 30), 4e-6)]
)
def test_a_shared_prompt_changes_no_sample(long: Made, lengths: tuple[int, ...], bound: float) -> None:
    """Up to `EXACT_KEYS` tokens not even a bit; beyond, as much as float32 sums in another order."""
    path, model = long
    decoder = make_decoder(path, max_model_len=2048)
    made = groups(*lengths)
    shared = run_all(make_batch(path, decoder, 9, max_length=2048), made)
    decoder.can_share_prompts = False
    apart = run_all(make_batch(path, decoder, 9, max_length=2048), groups(*lengths))
    assert largest_difference(shared, apart) <= bound
    assert forward(model, made, shared) <= 1e-5


def test_a_longer_neighbour_changes_no_bit_with_fixed_shapes(long: Made) -> None:
    """A step attends to no more blocks than its longest row needs, and nobody can tell."""
    path, _ = long
    decoder = make_decoder(path, max_model_len=2048)
    alone, beside = groups(700), groups(700, 690, 1700)
    wanted = run_all(make_batch(path, decoder, 8, max_length=2048, is_fixed=True), alone)
    got = run_all(make_batch(path, decoder, 8, max_length=2048, is_fixed=True), beside)
    assert largest_difference(wanted, got[: len(wanted)]) == 0


def test_samples_of_a_group_hold_its_prompt_once(long: Made) -> None:
    path, _ = long
    decoder = make_decoder(path, max_model_len=2048)
    for length in (200, 900):
        batch = make_batch(path, decoder, 8, max_length=2048)
        held = [0]
        run_all(batch, groups(length, n=8), watch=lambda batch=batch, held=held: held.append(batch.cache.num_bytes))
        own = 8 * 32 * decoder.kv_bytes_per_token  # slots grow by 32 positions
        assert length * decoder.kv_bytes_per_token <= max(held) - own <= 1.3 * length * decoder.kv_bytes_per_token
        assert batch.cache.num_bytes == own, "the last sample took the prompt with it"


def test_a_slot_that_moves_keeps_its_prompt_where_it_is() -> None:
    prompts = SharedPrompts()
    first, second = (Prefix([torch.randn(1, 2, n, 4)], [torch.randn(1, 2, n, 4)]) for n in (100, 128))
    prompts.add([0, 2], first)
    prompts.add([1], second)
    held = prompts.groups()[0].keys[0].data_ptr()
    prompts.release([0])
    prompts.move([2], [0])
    (group,) = prompts.groups()
    assert group.keys[0].data_ptr() == held
    assert dict(zip(group.rows.tolist(), group.places.tolist(), strict=True)) == {0: 0, 1: 1}
    assert torch.equal(group.keys[0][0, :, :100], first.keys[0][0]) and torch.equal(group.keys[0][1], second.keys[0][0])
    assert group.bias is not None and group.bias[:, 0, 0].eq(0).sum(-1).tolist() == [100, 128]
    prompts.add([3], first)
    assert prompts.groups()[0].num_places == 2, "a prompt that is there is not kept a second time"
    prompts.release([0, 1, 3])
    assert prompts.num_bytes == 0 and prompts.groups() == []


def test_a_prompt_that_left_is_taken_in_anew() -> None:
    prompts = SharedPrompts()
    first, second = (Prefix([torch.randn(1, 2, 64, 4)], [torch.randn(1, 2, 64, 4)]) for _ in range(2))
    prompts.add([0], first)
    prompts.add([1], second)
    prompts.release([0])
    prompts.add([0], second)
    prompts.add([2], first)
    (group,) = prompts.groups()
    place = dict(zip(group.rows.tolist(), group.places.tolist(), strict=True))
    assert torch.equal(group.keys[0][place[2] // group.num_places], first.keys[0][0])
    assert place[0] // group.num_places == place[1] // group.num_places == 1


def test_sizes_are_few_and_at_most_a_quarter_too_large() -> None:
    made = [rounded(size, least=64) for size in range(1, 5000)]
    assert all(size <= got <= max(64, 1.25 * size + 64) for size, got in enumerate(made, start=1))
    assert all(got <= 1.25 * size for size, got in enumerate(made, start=1) if size > 256)
    assert len(set(made)) < 25 and made == sorted(made)


def test_attention_over_parts_is_attention_over_all() -> None:
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 2, 4, 16), torch.randn(3, 2, 1900, 16), torch.randn(3, 2, 1900, 16)
    scores = (queries.double() / 4) @ keys.double().transpose(-1, -2)
    wanted = torch.softmax(scores, -1) @ values.double()
    whole = attend(queries, keys, values, bias=None, types=TYPES)
    assert whole.out.dtype == torch.float64 and (whole.out - wanted).abs().max() <= 1e-6
    pieces = [
        attend(queries, k, v, bias=None, types=TYPES, is_merged=True)
        for k, v in zip(keys.split(400, 2), values.split(400, 2), strict=True)
    ]
    merged = pieces[0]
    for piece in pieces[1:]:
        merged = merged.merged(piece)
    assert (merged.out - wanted).abs().max() <= 1e-7, "parts of up to 512 keys are exact"
    assert (merged.lse[..., 0] - torch.logsumexp(scores, -1)).abs().max() <= 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("is_each_other", [False, True], ids=["all queries see alike", "a bias for each query"])
def test_attention_that_need_not_be_exact_is_attention(dtype: torch.dtype, bound: float, is_each_other: bool) -> None:
    """Also where scores take more than one block, and as a part of more keys."""
    torch.manual_seed(5)
    types = NumberTypes.of(dtype, CPU, is_exact=False)
    queries, keys, values = (torch.randn(2, 2, size, 16).to(dtype) for size in (1200, 1900, 1900))
    scores = (queries.double() / 4) @ keys.double().transpose(-1, -2)
    bias = torch.zeros(2, 1, 1200, 100) if is_each_other else torch.zeros(2, 1, 1, 1900)
    bias[0, ..., -30:] = -1e30
    scores[0, ..., -30:] = float("-inf")
    for is_merged in (False, True):
        got = attend(queries, keys, values, bias=bias, types=types, is_merged=is_merged)
        assert got.out.dtype == torch.float32
        assert (got.out - torch.softmax(scores, -1) @ values.double()).abs().max() <= bound
    assert (got.lse[..., 0] - torch.logsumexp(scores, -1)).abs().max() <= bound
    assert types.for_keys(1900) == types, "sums stay float32"


def test_hidden_blocks_change_no_bit() -> None:
    """So a row's bits do not depend on how far its neighbours have come."""
    torch.manual_seed(1)
    queries, keys, values = torch.randn(2, 2, 4, 16), torch.randn(2, 2, 4000, 16), torch.randn(2, 2, 4000, 16)
    results = []
    for width in (1600, 2560, 3584, 4000):
        bias = torch.zeros(2, 1, 1, width, dtype=torch.float64)
        bias[..., 1536:] = -1e30
        results.append(attend(queries, keys[:, :, :width], values[:, :, :width], bias=bias, types=TYPES))
    assert all(torch.equal(result.out, results[0].out) for result in results[1:])


@pytest.mark.parametrize("num_blocks", [1, 4, 64])
def test_fused_attention_gives_the_same_with_and_without_splits(num_blocks: int) -> None:
    torch.manual_seed(2)
    queries, keys, values = torch.randn(2, 2, 6, 32), torch.randn(2, 2, 2048, 32), torch.randn(2, 2, 2048, 32)
    bias = torch.zeros(2, 1, 1, 2048)
    bias[0, ..., 700:] = -1e30
    wanted = attend(queries, keys, values, bias=bias.double(), types=TYPES)
    out, lse = fused_attention(queries, keys, values, bias, num_blocks=num_blocks)
    assert (out - wanted.out).abs().max() <= 1e-6 and (lse - wanted.lse).abs().max() <= 2e-6
    part = (t[:, :, :1000] for t in (keys, values))
    inner = fused_attention(queries, *part, bias[..., :1000], num_blocks=num_blocks)
    assert (inner[0][0] - wanted.out[0]).abs().max() <= 1e-6, "part of wider tensors, a width that is no multiple of 16"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [EXACT_KEYS, EXACT_KEYS + 100])
def test_attention_of_prompts_is_causal_attention(dtype: torch.dtype, length: int) -> None:
    torch.manual_seed(3)
    queries, keys, values = (torch.randn(1, heads, length, 16).to(dtype) for heads in (4, 2, 2))
    got = attend_causal(queries, keys, values, NumberTypes.of(dtype, CPU))
    repeated = (t.double().repeat_interleave(2, 1) for t in (keys, values))
    wanted = torch.nn.functional.scaled_dot_product_attention(queries.double(), *repeated, is_causal=True)
    assert got.dtype == dtype and (got - wanted).abs().max() <= (1e-6 if dtype == torch.float32 else 2e-2)


def test_a_part_that_weighs_nothing_changes_no_bit() -> None:
    torch.manual_seed(4)
    part = Part(torch.randn(2, 2, 1, 4).double(), torch.randn(2, 2, 1, 1).double())
    nothing = Part(torch.randn(2, 2, 1, 4).double(), torch.full((2, 2, 1, 1), -1e30, dtype=torch.float64))
    merged = part.merged(nothing)
    assert torch.equal(merged.out, part.out) and torch.equal(merged.lse, part.lse)


def test_a_copy_of_some_positions_is_right_for_any_layout() -> None:
    tensors = [
        torch.randn(5, 2, 9, 4),
        torch.randn(5, 9, 2, 4).transpose(1, 2),
        torch.randn(3, 6, 2, 11, 4)[1, 1:, :, 1:10],
    ]
    for place, start, end in ((0, 0, 9), (3, 2, 7), (4, 8, 9)):
        found = span_of(tensors, place, start, end)
        assert torch.equal(found, torch.stack([tensor[place, :, start:end] for tensor in tensors]))
        assert found.untyped_storage().nbytes() == found.numel() * 4, "memory of its own"
