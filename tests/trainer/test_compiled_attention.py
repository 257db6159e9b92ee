"""Attention by compiled kernels: outputs and gradients of the plain forms, which compute in float64 here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.trainer.conftest import make_episodes
from trinity.common.experience import EID, Experience
from trinity.trainer.batch import collate
from trinity.trainer.verl.attention import attend, attend_heads
from trinity.trainer.verl.compiled_attention import compiled_attend, compiled_attend_heads, compiles, pairs_of
from trinity.trainer.verl.packing import Packed, pack
from trinity.utils.fused.choice import LEAST_ELEMENTS

pytest.importorskip("numba")


def groups() -> list[Experience]:
    """Return rows of three prompts, of which one is longer than a block of keys, and responses longer than queries'."""
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 99, (length,), generator=generator) for length in (70, 5, 17)]
    rows = []
    for run, own in enumerate((60, 3, 17, 48, 100, 2)):
        prompt = prompts[run % 3]
        tokens = torch.cat([prompt, torch.randint(3, 99, (own,), generator=generator)])
        rows.append(Experience(EID(1, run % 3, run), tokens, len(prompt)))
    return rows


def packings() -> dict[str, Packed]:
    batch, episodes = collate(groups()), collate(make_episodes(episodes=2, turns=3, samples=2))
    forest = pack(episodes, share_prompts=False, share_prefixes=True)
    prompts = pack(batch, share_prompts=True)
    assert forest.forest is not None and prompts.prefix is not None
    return {"forest": forest, "prompts": prompts, "rows": pack(batch, share_prompts=False)}


PACKINGS = packings()
NUMBERS = 6, 2, 2


def leaves_of(packed: Packed, size: int) -> list[Tensor]:
    """Return queries, keys and values as slices of wider tensors, as in a layer."""
    return [part.requires_grad_() for part in heads_of(packed, size).split(NUMBERS, 1)]


def heads_of(packed: Packed, size: int) -> Tensor:
    return torch.randn(len(packed.tokens), sum(NUMBERS), size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", sorted(PACKINGS))
@pytest.mark.parametrize("size", [16, 48])
def test_outputs_and_gradients_are_those_of_the_plain_form(kind: str, size: int) -> None:
    packed = PACKINGS[kind]
    leaves = leaves_of(packed, size)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    out = compiled_attend(*leaves, packed, scale=size**-0.5)
    wanted = attend(exact[0], exact[1], exact[2], packed)  # float64 is never compiled
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    pairs = [
        (out, wanted),
        *zip(
            torch.autograd.grad((out * weights).sum(), leaves),
            torch.autograd.grad((wanted * weights.double()).sum(), exact),
            strict=True,
        ),
    ]
    for one, other in pairs:
        assert float((one - other).detach().norm()) <= 1e-6 * float(other.detach().norm())


@pytest.mark.parametrize("kind", sorted(PACKINGS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_that_are_rotated_on_the_way_get_the_gradients_of_the_plain_form(kind: str, dtype: torch.dtype) -> None:
    packed, size, numbers = PACKINGS[kind], 48, NUMBERS[:2]
    heads = heads_of(packed, size).to(dtype).requires_grad_()
    angles = torch.rand(len(packed.tokens), 1, size // 2, generator=torch.Generator().manual_seed(3)) * 6
    cos, sin = torch.cat([angles.cos()] * 2, 2).to(dtype), torch.cat([-angles.sin(), angles.sin()], 2).to(dtype)
    exact = heads.detach().double().requires_grad_()
    out = compiled_attend_heads(heads, cos, sin, packed, numbers=numbers)
    wanted = attend_heads(exact, cos.double(), sin.double(), packed, numbers=numbers)  # float64 is never compiled
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    (found,), (right,) = torch.autograd.grad(out, heads, weights), torch.autograd.grad(wanted, exact, weights.double())
    bound = {torch.float32: 1e-6, torch.bfloat16: 5e-3}[dtype]
    for one, other in ((out, wanted), (found, right)):
        assert one.dtype == dtype and float((one - other).detach().norm()) <= bound * float(other.detach().norm())
    queries, keys, values = (sum(NUMBERS[:n]) for n in range(3))
    for begin, end in ((queries, keys), (keys, values), (values, sum(NUMBERS))):
        part = right[:, begin:end]
        assert float((found[:, begin:end] - part).norm()) <= 2 * bound * float(part.norm())


@pytest.mark.parametrize("kind", sorted(PACKINGS))
def test_bfloat16_is_computed_in_float32_and_rounded_once(kind: str) -> None:
    packed, results = PACKINGS[kind], []
    half = [leaf.detach().bfloat16() for leaf in leaves_of(packed, 48)]
    weights = torch.randn(len(packed.tokens), 288, generator=torch.Generator().manual_seed(2)).bfloat16()
    for dtype in (torch.bfloat16, torch.float32):
        leaves = [leaf.to(dtype).requires_grad_() for leaf in half]
        out = compiled_attend(*leaves, packed, scale=48**-0.5)
        results.append([out.detach(), *torch.autograd.grad(out, leaves, weights.to(dtype))])
    assert torch.equal(results[0][0], results[1][0].bfloat16())
    for one, other in zip(*results, strict=True):
        assert one.dtype == torch.bfloat16
        assert float((one.float() - other).norm()) <= 3e-3 * float(other.norm())


def test_a_broken_number_reaches_what_sees_it_and_nothing_else() -> None:
    packed = PACKINGS["rows"]
    leaves = leaves_of(packed, 16)
    broken, row = 3, packed.rows.lengths[0]
    leaves[1].data[broken] = float("nan")
    out = compiled_attend(*leaves, packed, scale=0.25)
    assert bool(out[broken:row].isnan().all())
    assert bool(out[:broken].isfinite().all()) and bool(out[row:].isfinite().all())


@pytest.mark.parametrize("kind", sorted(PACKINGS))
def test_queries_that_predict_nothing_may_be_left_out(kind: str) -> None:
    packed, results = PACKINGS[kind], []
    for is_scored_only in (False, True):
        leaves = leaves_of(packed, 16)
        out = compiled_attend(*leaves, packed, scale=0.25, is_scored_only=is_scored_only)[packed.sources]
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        assert float((one - other).abs().max()) <= 1e-6 * float(one.abs().max())
    counts = [sum(pair[3] for pair in pairs_of(packed, is_scored_only=flag)) for flag in (False, True)]
    assert counts[1] < counts[0]


def test_deterministic_runs_and_other_numbers_are_not_compiled() -> None:
    from trinity.trainer.verl.attention_rule import PLAIN, Rule

    queries, values = (torch.zeros(LEAST_ELEMENTS // 8 // 16, heads, 16) for heads in (8, 2))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert compiles(queries, values, PLAIN)
        assert not compiles(queries.double(), values.double(), PLAIN)
        assert compiles(queries.bfloat16(), values.bfloat16(), PLAIN)
        assert not compiles(queries, values, Rule(window=4))
        torch.use_deterministic_algorithms(True)
        assert not compiles(queries, values, PLAIN)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(before)


def test_inputs_of_several_data_types_are_computed_in_the_widest() -> None:
    """As autocast gives them: queries and keys in float32, values in bfloat16."""
    packed, results = PACKINGS["prompts"], []
    leaves = [leaf.detach() for leaf in leaves_of(packed, 48)]
    leaves[2] = leaves[2].bfloat16()
    weights = torch.randn(len(packed.tokens), 288, generator=torch.Generator().manual_seed(2))
    for dtypes in ((torch.float32, torch.float32, torch.bfloat16), (torch.float32,) * 3):
        given = [leaf.to(dtype).requires_grad_() for leaf, dtype in zip(leaves, dtypes, strict=True)]
        out = compiled_attend(*given, packed, scale=0.1)
        results.append([out.detach(), *torch.autograd.grad(out, given, weights)])
    assert [each.dtype for each in results[0]] == [torch.float32] * 3 + [torch.bfloat16]
    assert all(torch.equal(one, other.to(one.dtype)) for one, other in zip(*results, strict=True))
