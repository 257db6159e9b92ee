"""Noise, truncation and draws, each row on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trinity.engine.sampler import RowParams, noise_key, sample, uniforms


def params(rows: int, vocabulary: int, **changes: Any) -> RowParams:
    """Return parameters that switch everything off, with `changes`."""
    plain = RowParams(
        temperature=torch.ones(rows),
        is_greedy=torch.zeros(rows, dtype=torch.bool),
        top_k=torch.full((rows,), vocabulary),
        top_p=torch.full((rows,), 2.0),
        no_stop=torch.zeros(rows, dtype=torch.bool),
        stop_ids=torch.tensor([1]),
        num_tokens=vocabulary,
        unknown_ids=torch.tensor([], dtype=torch.long),
        has_temperature=False,
        has_greedy=False,
        max_top_k=0,
        has_top_p=False,
        has_min=False,
    )
    return replace(plain, **changes)


def noise(rows: int) -> Tensor:
    return uniforms(torch.full((rows,), noise_key(7, "x")), torch.arange(rows))


def frequencies(logits: Tensor, chosen: RowParams, rows: int) -> Tensor:
    tokens, _ = sample(logits.expand(rows, -1), chosen, uniform=noise(rows))
    return torch.bincount(tokens, minlength=logits.shape[-1]) / rows


def test_noise_is_splitmix64() -> None:
    # First three outputs of the published generator from seed 0.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    got = uniforms(torch.zeros(3, dtype=torch.long), torch.arange(3))
    wanted = torch.tensor([((value >> 12) + 0.5) / 2**52 for value in published], dtype=torch.float64)
    assert torch.equal(got, wanted)


def test_noise_is_uniform_and_within_the_open_interval() -> None:
    values = noise(100_000)
    assert values.min() > 0 and values.max() < 1
    # Standard error of the mean 0.0009, of a decile's share 0.00095.
    assert abs(values.mean() - 0.5) < 0.004
    shares = torch.histc(values.float(), bins=10, min=0, max=1) / len(values)
    assert (shares - 0.1).abs().max() < 0.004


def test_keys_differ_by_seed_and_by_identity() -> None:
    keys = {noise_key(seed, name) for seed in range(50) for name in ("1/0/0/0", "1/0/1/0", "10/0/0/0")}
    assert len(keys) == 150
    assert noise_key(1, "2") != noise_key(12, "")


def test_tokens_come_with_their_probabilities() -> None:
    logits = torch.tensor([[2.0, 0.5, -1.0, 0.0, 1.0]])
    rows = 40_000
    seen = frequencies(logits, params(rows, 5), rows)
    wanted = torch.softmax(logits[0], -1)
    # Five standard errors of the most uncertain share.
    assert (seen - wanted).abs().max() < 5 * (0.25 / rows) ** 0.5


def test_logprob_is_that_of_the_whole_distribution_at_the_temperature() -> None:
    logits = torch.randn(64, 11, generator=torch.Generator().manual_seed(3))
    heat = torch.linspace(0.3, 2.0, 64)
    chosen = params(64, 11, temperature=heat, has_temperature=True, top_k=torch.full((64,), 3), max_top_k=3)
    tokens, logprobs = sample(logits, chosen, uniform=noise(64))
    wanted = torch.log_softmax(logits / heat[:, None], -1).gather(1, tokens[:, None])[:, 0]
    assert torch.equal(logprobs, wanted)
    assert all(token in row.topk(3).indices for token, row in zip(tokens, logits, strict=True))


def test_top_k_keeps_exactly_k_even_among_equals() -> None:
    rows = 2000
    chosen = params(rows, 6, top_k=torch.full((rows,), 2), max_top_k=2)
    seen = frequencies(torch.zeros(1, 6), chosen, rows)
    assert int((seen > 0).sum()) == 2


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    rows = 4000
    chosen = params(rows, 4, top_p=torch.full((rows,), 0.6), has_top_p=True)
    seen = frequencies(logits, chosen, rows)
    assert seen[2] == seen[3] == 0
    assert abs(float(seen[0]) - 0.625) < 0.04


def test_a_neighbour_that_truncates_does_not_change_a_row() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(4))
    alone, alone_logprob = sample(logits[:1], params(1, 50), uniform=noise(1))
    mixed = params(
        2,
        50,
        top_k=torch.tensor([50, 3]),
        top_p=torch.tensor([2.0, 0.1]),
        max_top_k=3,
        has_top_p=True,
        temperature=torch.tensor([1.0, 0.5]),
        has_temperature=True,
    )
    both, both_logprobs = sample(logits, mixed, uniform=torch.cat((noise(1), noise(1))))
    assert both[0] == alone[0] and both_logprobs[0] == alone_logprob[0]


@pytest.mark.parametrize("position", [0.0, 1e-12, 0.5, 1 - 2.0**-52])
def test_impossible_and_padding_tokens_are_never_drawn(position: float) -> None:
    never = float("-inf")
    logits = torch.tensor([[never, 0.0, never, 1.0, never, 50.0, 60.0]])
    uniform = torch.tensor([position], dtype=torch.float64)
    tokens, _ = sample(logits, params(1, 5), uniform=uniform)
    assert int(tokens) in (1, 3)


def test_a_large_vocabulary_is_drawn_to_its_end() -> None:
    logits = torch.full((1, 20_000), -20.0)
    logits[0, 19_990] = 0.0
    tokens, _ = sample(logits, params(1, 20_000), uniform=torch.tensor([1 - 2.0**-52], dtype=torch.float64))
    assert 19_990 <= int(tokens) < 20_000


def test_greedy_takes_the_most_probable_token_that_may_be_drawn() -> None:
    logits = torch.tensor([[0.0, 9.0, 3.0, 1.0]])
    chosen = params(1, 4, is_greedy=torch.tensor([True]), has_greedy=True)
    tokens, logprobs = sample(logits, chosen, uniform=noise(1))
    assert int(tokens) == 1
    assert torch.equal(logprobs, torch.log_softmax(logits, -1)[:, 1])
    held = replace(chosen, no_stop=torch.tensor([True]), has_min=True)
    assert int(sample(logits, held, uniform=noise(1))[0]) == 2
