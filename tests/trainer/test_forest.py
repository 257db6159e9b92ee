"""Prefixes that are passed once change no output and no gradient: every rule, family, split, rank."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from tests.families import CASES, VOCABULARY, case_config
from tests.families import tiny_model as family_model
from tests.trainer import rank_calls
from tests.trainer.conftest import make_branches, make_episodes
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_prefixes import families_of_rows, forest_of
from tests.trainer.test_ranks import BY_ROWS, BY_TOKENS, other_family, tree
from tests.trainer.test_update import TERMS, gradients, worker
from trinity.common.config import Config
from trinity.common.errors import EnvironmentProblem
from trinity.common.experience import EID, Experience
from trinity.common.models.model_config import silence
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.verl import forest
from trinity.trainer.verl.attention import attend
from trinity.trainer.verl.attention_rule import Rule
from trinity.trainer.verl.decoder import HFPackedDecoder, make_decoder
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.layout import run_packed
from trinity.trainer.verl.logprob import logprob_and_entropy
from trinity.trainer.verl.packing import Packed, pack

Maker = Callable[..., Config]
OWN_ATTENTION = ("codegen", "gpt_neox_japanese", "gptj")  # packed by masks of transformers, not by ours
TOLERANCE = 3e-5  # float32 through random layers; what is wrong is off by hundredths
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
RULES = {
    "plain": Rule(),
    "scale": Rule(scale=0.3),
    "window": Rule(window=21),
    "soft cap": Rule(softcap=1.5),
    "sinks": Rule(sinks=SINKS),
    "all": Rule(scale=0.4, window=9, softcap=2.0, sinks=SINKS),
}


def once(batch: TrainBatch) -> Packed:
    """Return rows packed as a forest, however little that saves."""
    from trinity.trainer.verl.packing import _pack_forest

    packed = _pack_forest(batch, most=float("inf"))
    assert packed is not None and packed.forest is not None
    return packed


def formula(q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
    """Return attention [T, Q, E] of one row as the definition says."""
    repeat, length = q.shape[1] // k.shape[1], len(q)
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if rule.scale is None else rule.scale)
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    scores = scores.masked_fill((distance < 0) | (distance >= (rule.window or length)), float("-inf"))
    if rule.sinks is not None:
        scores = torch.cat([scores, rule.sinks[:, None, None].expand(-1, length, 1)], -1)
    return torch.einsum("hij,jhe->ihe", scores.softmax(-1)[..., :length], v)


def assert_attention_is_the_formula(rows: list[Experience], rule: Rule, *, size: int, value_size: int) -> None:
    """Compare outputs and gradients over a forest with those of each row alone, in float64."""
    batch = collate(rows)
    packed = once(batch)
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    count = len(packed.tokens)
    q, k, v = draw(count, 4, size), draw(count, 2, size), draw(count, 2, value_size)
    sinks = None if rule.sinks is None else rule.sinks.clone()
    weights = draw(len(packed.sources), 4 * value_size)
    leaves = [t.requires_grad_() for t in (q, k, v, sinks) if t is not None]
    own = dataclasses.replace(rule, sinks=sinks)

    found = attend(q, k, v, packed, own)[packed.sources]
    of_forest = torch.autograd.grad((found * weights).sum(), leaves)

    made = forest_of(batch)
    parts = []
    for row in range(len(batch)):
        places = torch.from_numpy(made.places(row))
        scored = torch.nonzero(batch.action_mask[row])[:, 0] + batch.prompt_lengths[row] - 1
        parts.append(formula(q[places], k[places], v[places], own)[scored].flatten(1))
    wanted = torch.cat(parts)
    of_rows = torch.autograd.grad((wanted * weights).sum(), leaves)
    for one, other in [(found, wanted), *zip(of_forest, of_rows, strict=True)]:
        assert float((one - other).detach().abs().max()) <= 1e-10 * max(1.0, float(other.detach().abs().max()))


@settings(max_examples=60)
@given(families_of_rows(), st.sampled_from(sorted(RULES)), st.sampled_from([(8, 8), (8, 12)]), st.booleans())
def test_attention_over_a_forest_is_that_of_each_row_alone(
    rows: list[Experience], rule: str, sizes: tuple[int, int], has_small_blocks: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if has_small_blocks:  # what long rows need: several blocks of queries, the library's kernel, few rows at once
            patch.setattr(forest, "SHORT", 12)
            patch.setattr(forest, "QUERY_BLOCK", 10)
            patch.setattr(forest, "MIN_BLOCK", 4)
            patch.setattr(forest, "BLOCK_WEIGHTS", 300)
            forest._pieces.cache_clear()
        assert_attention_is_the_formula(rows, RULES[rule], size=sizes[0], value_size=sizes[1])
    forest._pieces.cache_clear()


@pytest.mark.parametrize("rule", sorted(RULES))
def test_attention_over_long_prefixes_is_that_of_each_row_alone(rule: str) -> None:
    base = torch.randint(3, 100, (600,), generator=torch.Generator().manual_seed(2))
    rows = []
    for run, (length, own) in enumerate(((600, 40), (600, 300), (580, 20), (300, 350), (600, 3))):
        tokens = torch.cat([base[:length], torch.full((own,), 200 + run)])
        rows.append(Experience(EID(1, 0, run), tokens, length))
    assert_attention_is_the_formula(rows, RULES[rule], size=8, value_size=8)


def test_a_whole_model_in_float64_has_the_gradient_of_each_row_alone() -> None:
    config = GPT2Config(vocab_size=30, n_embd=32, n_layer=3, n_head=4, n_positions=128, resid_pdrop=0.0)
    config.embd_pdrop = config.attn_pdrop = 0.0
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    decoder = make_decoder(model, dtype=torch.float32, recompute=False)
    assert isinstance(decoder, HFPackedDecoder) and decoder.can_share_prefixes
    model.double()
    batch = collate(make_episodes(episodes=2, turns=3, samples=2))
    results = []
    for packed in (pack(batch, share_prompts=False), once(batch)):
        model.zero_grad()
        with computing(packed):
            hidden = run_packed(model, packed.tokens, packed.positions)[packed.sources]
            weights = torch.randn(hidden.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            (hidden * weights).sum().backward()
        results.append([hidden.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(once(batch).tokens) < 0.5 * len(pack(batch, share_prompts=False).tokens)
    for one, other in zip(*results, strict=True):
        assert float((one - other).abs().max()) <= 1e-10 * float(one.abs().max())


def episodes_of(vocabulary: int) -> TrainBatch:
    """Return rows that share prefixes longer than any window of the tiny families."""
    rows = make_episodes(episodes=2, turns=3, samples=2)
    for row in rows:
        row.tokens = 5 + row.tokens % (vocabulary - 5)
    return collate(rows)


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_a_family_shares_prefixes_rightly_or_not_at_all(family: str, variant: str) -> None:
    config = case_config(family, variant)
    silence(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = family_model(config)
        try:
            decoder = make_decoder(model, dtype=torch.float32, recompute=False)
        except EnvironmentProblem:
            return
        layout = decoder.layout if isinstance(decoder, HFPackedDecoder) else None
        can_share = layout is None or (layout.kind == "packed" and family not in OWN_ATTENTION)
        assert decoder.can_share_prefixes == can_share
        if not decoder.can_share_prefixes:
            assert layout is not None and "is computed for each of them" in layout.text
            return
        batch, results = episodes_of(VOCABULARY), []
        for packed in (pack(batch, share_prompts=False), once(batch)):
            model.zero_grad()
            with computing(packed):
                logprob, _ = logprob_and_entropy(decoder.hidden(packed), decoder.head(), packed.labels)
                weights = torch.randn(len(logprob), generator=torch.Generator().manual_seed(1))
                (logprob * weights).sum().backward()
            grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            results.append((logprob.detach(), grads))
    (wanted, of_rows), (found, of_forest) = results
    assert float((found - wanted).abs().max()) <= TOLERANCE * max(1.0, float(wanted.abs().max()))
    scale = max(float(t.abs().max()) for t in of_rows.values())
    assert max(float((of_forest[name] - t).abs().max()) for name, t in of_rows.items()) <= TOLERANCE * scale


def apart(made: object) -> object:
    """Return a worker that shares nothing."""
    decoders = [made.actor.decoder, *([] if made.reference is None else [made.reference.scorer.decoder])]
    for decoder in decoders:
        decoder.can_share_prompts = decoder.can_share_prefixes = False
    return made


def assert_near(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    """Assert that the difference of two gradients is small beside the gradient."""
    size = sum(float(t.double().square().sum()) for t in first.values()) ** 0.5
    off = sum(float((t - second[name]).double().square().sum()) for name, t in first.items()) ** 0.5
    assert size > 1e-4 and off <= tolerance * size, off / size


@pytest.mark.parametrize("kind", ["turns", "turns with samples", "branches"])
@pytest.mark.parametrize("split", [{}, {"max_rows": 1, "max_tokens": None}, {"max_rows": 3}, {"max_tokens": 80}])
def test_shared_prefixes_do_not_change_the_gradient(
    make_config: Maker, kind: str, split: dict[str, int | None]
) -> None:
    config = make_config(algorithm=TERMS)
    rows = make_branches() if kind == "branches" else make_episodes(episodes=3, samples=1 if kind == "turns" else 3)
    shared, alone = worker(config, **split), apart(worker(config))
    assert worker(config).actor.scorer.pack(collate(rows)).forest is not None
    assert alone.actor.scorer.pack(collate(rows)).forest is None
    assert_near(gradients(alone, rows), gradients(shared, rows))


def test_logprobs_entropies_and_counts_are_those_of_each_row(make_config: Maker) -> None:
    config = make_config(algorithm=TERMS)
    rows = make_episodes(episodes=3, turns=3, samples=2) + make_branches()
    shared, alone = worker(config), apart(worker(config))
    batch = collate(rows)
    wanted, found = (made.actor.scorer.compute_statistics(batch, ["entropys"]) for made in (alone, shared))
    for name, values in wanted.items():
        assert float((found[name] - values).abs().max()) < 2e-6 * float(values.abs().max())
        assert bool((found[name][~batch.action_mask] == 0).all())
    steps = [made.train_step(rows, 1) for made in (shared, apart(worker(config)))]
    for name, value in steps[1].items():
        if not name.startswith(("time/", "perf/")):
            assert steps[0][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert steps[0]["perf/trainer/shared_tokens"] > 0.5 * batch.num_tokens
    assert steps[1]["perf/trainer/shared_tokens"] == 0


@pytest.mark.parametrize("recompute", [False, True])
def test_a_critic_and_recomputed_layers_share_prefixes(make_config: Maker, recompute: bool) -> None:
    model = {"enable_gradient_checkpointing": recompute}
    trainer = {"trainer_config": {"actor_rollout_ref": {"model": model}, "critic": {"model": model}}}
    config = make_config(algorithm={"algorithm_type": "ppo"}, trainer=trainer)
    rows = make_episodes(episodes=3, turns=3)
    results = []
    for shares in (True, False):
        made = worker(config)
        assert made.critic is not None
        if not shares:
            apart(made)
            decoder = made.critic.trained.decoder
            decoder.can_share_prompts = decoder.can_share_prefixes = False
        metrics = made.train_step(rows, 1)
        results.append((metrics, {n: p.detach().clone() for n, p in made.critic.model.named_parameters()}))
    (of_shared, shared), (of_alone, alone) = results
    assert of_shared["critic/vf_loss"] == pytest.approx(of_alone["critic/vf_loss"], rel=1e-5)
    assert of_shared["critic/grad_norm"] == pytest.approx(of_alone["critic/grad_norm"], rel=1e-5)
    assert of_shared["actor/grad_norm"] == pytest.approx(of_alone["actor/grad_norm"], rel=1e-5)
    assert max(float((alone[name] - t).abs().max()) for name, t in shared.items()) < 1e-3


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_ranks_that_share_prefixes_have_the_gradient_of_rows_apart(
    make_config: Maker, tmp_path: Path, pool: RankPool, world: int
) -> None:
    rows = make_episodes(episodes=5, turns=3, samples=2) + make_branches()
    size = {"ulysses_sequence_parallel_size": 2}
    matrices = {"trainer_strategy": "megatron", "megatron": {"tensor_model_parallel_size": 2}}
    layers = {"trainer_strategy": "megatron", "megatron": {"pipeline_model_parallel_size": 2}}
    gemma = {"model": other_family(tmp_path / "gemma2", "gemma2")}
    configs = [
        make_config(algorithm=TERMS),
        make_config(algorithm=TERMS, trainer=size),
        make_config(algorithm=TERMS, **gemma),
        make_config(algorithm=TERMS, trainer=size, **gemma),
        make_config(algorithm=TERMS, trainer=matrices),
        make_config(algorithm=TERMS, trainer=layers),
    ]
    calls = [(tree(config), split, rows) for config in configs for split in (BY_ROWS, {**BY_TOKENS, "max_tokens": 120})]
    alone = []
    for values, _, _ in calls:
        made = apart(rank_calls.moved_worker(ALONE, values))
        alone.append(rank_calls._gradient(made, rows))
    for of_rank in pool.run(world, rank_calls.gradients, calls):
        for wanted, found in zip(alone, of_rank, strict=True):
            assert_near(wanted, found, 1e-6)
