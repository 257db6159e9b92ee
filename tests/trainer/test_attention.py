"""Attention over packed rows, by every way of computing it, is the plain formula: windows, soft caps, sinks, scales."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tests.trainer.conftest import make_branches, make_episodes
from tests.trainer.test_prefixes import forest_of
from trinity.trainer.batch import collate
from trinity.trainer.verl import attention, blockwise, flex
from trinity.trainer.verl.attention import attend
from trinity.trainer.verl.attention_rule import Rule
from trinity.trainer.verl.forest import forest_attend
from trinity.trainer.verl.packing import Block, Packed

LENGTHS = ((7, 7), (23, 9, 17), (300, 40, 3))
SCALE = 0.4
RULES = {
    "plain": Rule(),
    "window": Rule(window=21),
    "soft cap": Rule(softcap=1.5),
    "sinks": Rule(sinks=torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)),
}


def packed(lengths: tuple[int, ...]) -> Packed:
    """Return the packing of rows of which nothing is scored."""
    width, none = max(lengths), torch.zeros(0, dtype=torch.long)
    slots = torch.cat([torch.arange(length) + row * width for row, length in enumerate(lengths)])
    rows = Block(0, lengths, width, None if len(slots) == width * len(lengths) else slots)
    return Packed(none, none, None, rows, None, none, none, none, len(lengths), 0)


def formula(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], rule: Rule) -> Tensor:
    """Return the outputs as the definition says, one row after another."""
    outputs = []
    parts = zip(*(t.split(lengths) for t in (q, k, v)), strict=True)
    for queries, keys, values in parts:
        repeat, length = queries.shape[1] // keys.shape[1], len(queries)
        keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        scores = torch.einsum("ihd,jhd->hij", queries, keys) * SCALE
        if rule.softcap is not None:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        hidden = (distance < 0) | (distance >= (rule.window or length))
        scores = scores.masked_fill(hidden, float("-inf"))
        if rule.sinks is not None:
            scores = torch.cat([scores, rule.sinks.double()[:, None, None].expand(-1, length, 1)], -1)
        outputs.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1)[..., :length], values).flatten(1))
    return torch.cat(outputs)


def tensors(lengths: tuple[int, ...], sizes: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries (4 heads), keys and values (2 heads), and sinks."""
    generator, total = torch.Generator().manual_seed(0), sum(lengths)
    made = [torch.randn(total, heads, size, generator=generator) for heads, size in ((4, sizes[0]), (2, sizes[0]))]
    made += [torch.randn(total, 2, sizes[1], generator=generator), torch.randn(4, generator=generator)]
    q, k, v, sinks = (t.requires_grad_() for t in made)
    return q, k, v, sinks


@pytest.fixture(params=["blockwise", "library"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let one of the ways compute all rows; blocks and steps are small, so that there are many."""
    monkeypatch.setattr(attention, "BLOCKWISE_MAX_LENGTH", 10**6 if request.param == "blockwise" else 0)
    monkeypatch.setattr(attention, "WINDOW_STEP", 64)
    monkeypatch.setattr(blockwise, "QUERY_BLOCK", 16)
    monkeypatch.setattr(blockwise, "BLOCK_WEIGHTS", 2**12)
    return str(request.param)


@pytest.mark.parametrize("sizes", [(8, 8), (12, 8), (8, 16)])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.3])
@pytest.mark.parametrize("window", [None, 5, 200])
def test_every_way_is_the_formula(
    way: str, window: int | None, softcap: float | None, with_sinks: bool, sizes: tuple[int, int]
) -> None:
    for lengths in LENGTHS:
        q, k, v, sinks = tensors(lengths, sizes)
        rule = Rule(SCALE, window, softcap, sinks if with_sinks else None)
        leaves = [q, k, v, sinks] if with_sinks else [q, k, v]
        factors = torch.randn(sum(lengths), 4 * sizes[1], generator=torch.Generator().manual_seed(1))
        wanted = formula(q.double(), k.double(), v.double(), lengths, rule)
        of_wanted = torch.autograd.grad((wanted * factors).sum(), leaves)
        found = attend(q, k, v, packed(lengths), rule)
        of_found = torch.autograd.grad((found * factors).sum(), leaves)
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
        for left, right in zip(of_found, of_wanted, strict=True):
            torch.testing.assert_close(left, right, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.3])
@pytest.mark.parametrize("window", [None, 5])
def test_flex_attention_is_the_formula(window: int | None, softcap: float | None, with_sinks: bool) -> None:
    for lengths in LENGTHS[1:]:
        q, k, v, sinks = (t.detach() for t in tensors(lengths, (8, 8)))
        rule = Rule(SCALE, window, softcap, sinks if with_sinks else None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            found = flex._flex(q * SCALE, k, v, flex.rows_as_nodes(lengths), rule, compute=flex_attention).flatten(1)
        wanted = formula(q.double(), k.double(), v.double(), lengths, rule)
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_flex_attention_over_a_forest_is_that_of_the_library(rule: str) -> None:
    """Outputs; its gradient is that of PyTorch, which has none of it on a CPU."""
    for rows in (make_episodes(episodes=3, turns=3, samples=3), make_branches(rollouts=3)):
        nodes = forest_of(collate(rows)).nodes
        assert len(nodes) > 6
        q, k, v, _ = (t.detach().double() for t in tensors((sum(node.length for node in nodes),), (8, 8)))
        own = RULES[rule]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            found = flex._flex(q * SCALE, k, v, nodes, own, compute=flex_attention).flatten(1)
        torch.testing.assert_close(found, forest_attend(q * SCALE, k, v, nodes, own), atol=1e-6, rtol=1e-6)


def test_a_device_shares_prefixes_only_if_its_kernel_is_right() -> None:
    """The check itself, also within a pass without gradients: a kernel that is right, that forgets, that fails."""

    def written_out(
        q: Tensor, k: Tensor, v: Tensor, *, block_mask: BlockMask | None, **_: object
    ) -> tuple[Tensor, None]:
        places = torch.arange(q.shape[2])
        mask = None if block_mask is None else block_mask.mask_mod(None, None, places[:, None], places[None])
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0), None

    def forgetful(q: Tensor, k: Tensor, v: Tensor, **_: object) -> tuple[Tensor, None]:
        return written_out(q, k, v, block_mask=None)

    def failing(q: Tensor, k: Tensor, v: Tensor, **_: object) -> tuple[Tensor, None]:
        raise RuntimeError("no kernel for this size")

    state = torch.get_rng_state()
    for dtype, tolerance in flex._TOLERANCES.items():
        with torch.no_grad():
            assert flex._error_of_forest(torch.device("cpu"), dtype, compute=written_out) <= tolerance
            assert 10 * tolerance < flex._error_of_forest(torch.device("cpu"), dtype, compute=forgetful) < float("inf")
            assert flex._error_of_forest(torch.device("cpu"), dtype, compute=failing) == float("inf")
    assert torch.equal(torch.get_rng_state(), state)
    assert not flex.forest_works(torch.device("cpu"))


def test_where_flex_attention_does_not_work_this_is_told_and_others_compute(caplog: pytest.LogCaptureFixture) -> None:
    flex.flex_works.cache_clear()
    with caplog.at_level("WARNING"):
        assert not flex.flex_works(torch.device("cpu"), torch.float32), "PyTorch has no backward pass of it on a CPU"
    assert "flex attention does not work on cpu" in caplog.text
    q, _, v, _ = tensors((23, 9, 17), (8, 8))
    assert not flex.has_kernel(q, v, Rule())


def test_flash_attention_is_told_where_rows_begin_and_what_they_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself runs on CUDA only; its contract is that of PyTorch's documentation, written out here."""
    calls = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor, *longest: int, **rest: object):
        calls.append((starts.tolist(), longest, rest))
        assert torch.equal(starts, key_starts) and starts.dtype == torch.int32
        window = rest["window_size"][0]  # type: ignore[index]
        rule = Rule(None, None if window < 0 else window + 1)
        lengths = tuple((starts[1:] - starts[:-1]).tolist())
        return formula(q / SCALE, k, v, lengths, rule).view(len(q), q.shape[1], -1)

    monkeypatch.setattr(flex, "_flash_kernel", lambda: kernel)
    q, k, v, _ = (t.detach() for t in tensors((23, 9, 17), (8, 8)))
    for window in (None, 5):
        found = flex._flash(q * SCALE, k, v, (23, 9, 17), window).flatten(1)
        wanted = formula(q, k, v, (23, 9, 17), Rule(SCALE, window))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert calls[0] == ([0, 23, 32, 49], (23, 23), {"scale": 1.0, "window_size": (-1, 0), "enable_gqa": True})
    assert calls[1][2]["window_size"] == (4, 0)


@pytest.mark.parametrize("rule", [Rule(), Rule(softcap=1.3), Rule(window=100), Rule(sinks=torch.zeros(4))])
@pytest.mark.parametrize("longest", [512, 2048])
def test_what_is_kept_for_the_backward_pass_grows_with_the_tokens_only(rule: Rule, longest: int) -> None:
    def kept(lengths: tuple[int, ...]) -> int:
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        q, k, v, _ = tensors(lengths, (8, 8))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = attend(q, k, v, packed(lengths), rule)
        assert out.requires_grad
        return sum(sizes.values())

    assert kept((longest, longest)) < 2.5 * kept((longest // 2,) * 4)


def test_gradients_in_bfloat16_do_not_lose_more_with_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of queries adds to the gradients of the first keys and values."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1024, 1, 32, generator=generator) for _ in range(3))
    weights = torch.randn(1, 1024, 1, 32, generator=generator) + 0.5

    def gradients(dtype: torch.dtype, rows: int) -> list[Tensor]:
        monkeypatch.setattr(blockwise, "QUERY_BLOCK", rows)
        given = [t.to(dtype).requires_grad_() for t in (q * 0.1, k, v)]
        out = blockwise.blockwise(*given, softcap=30.0)
        return [each.double() for each in torch.autograd.grad(out, given, weights.to(dtype))[1:]]

    wanted = gradients(torch.float64, 256)
    for rows in (1024, 8):
        for one, other in zip(gradients(torch.bfloat16, rows), wanted, strict=True):
            assert float((one - other).norm()) < 6e-3 * float(other.norm())
