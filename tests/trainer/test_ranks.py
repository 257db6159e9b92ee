"""One rank, two and four train alike: FSDP2 over gloo, each rank a process with its own part of model and optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import families
from tests.tiny import tiny_model
from tests.trainer import rank_calls
from tests.trainer.conftest import make_experiences
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_invariances import with_terms
from tests.trainer.test_losses import LOSSES, _experiences, _mixed, _near
from tests.trainer.test_pairs import ALGORITHM, make_pairs
from tests.trainer.test_together import _config as everything
from tests.trainer.test_together import _experiences as experiences_of_everything
from tests.trainer.test_update import MODES, TERMS, assert_same
from tests.trainer.test_update import worker as one_worker
from trinity.common.config import Config
from trinity.trainer.batch import collate, micro_batches
from trinity.trainer.verl.parallel.balance import share_rows, split_work

Maker = Callable[..., Config]
BY_ROWS = {"max_rows": 2, "max_tokens": None}
BY_TOKENS = {"max_tokens": 40, "max_rows": None}
# AdamW divides by the root of a gradient's square: noise of 1e-8 in a gradient near 0 is a step of its own size.
MOVED = 1e-4


def tree(config: Config) -> dict[str, Any]:
    """Return what was written of a configuration, as it travels to another process."""
    return config.model_dump(exclude_unset=True)


def with_actor(**keys: Any) -> dict[str, Any]:
    """Return the section `trainer` with keys of the policy's FSDP section."""
    return {"trainer_config": {"actor_rollout_ref": {"actor": {"fsdp_config": keys}}}}


def other_family(path: Path, family: str) -> dict[str, Any]:
    """Return the section `model` of a fresh model of another family."""
    if family in ("gemma2", "bamba", "bloom"):
        families.tiny_model(families.tiny_config(family), seed=1).save_pretrained(path)
    else:
        tiny_model(path, family, seed=1, scale=3.0)
    return {"model_path": str(path)}


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_no_policy_loss_sees_the_number_of_ranks(make_config: Maker, pool: RankPool, world: int) -> None:
    calls: list[rank_calls.Call] = []
    near = _near(one_worker(make_config()), _experiences())
    names = LOSSES if world == 2 else LOSSES[::6]
    for name in names:
        config, rows = with_terms(make_config, name), _mixed(name, copy.deepcopy(near))
        calls.append((tree(config), BY_TOKENS if len(calls) % 2 else BY_ROWS, rows))
    alone = rank_calls.gradients_of_losses(ALONE, calls)
    for of_rank in pool.run(world, rank_calls.gradients_of_losses, calls):
        for expected, found in zip(alone, of_rank, strict=True):
            assert_same(expected, found, 1e-6)


@pytest.mark.difference("Several workers")
@pytest.mark.parametrize("world", [2, 4])
def test_the_number_of_ranks_does_not_change_the_gradient(
    make_config: Maker, tmp_path: Path, pool: RankPool, world: int
) -> None:
    fresh = {"lora_configs": [{"lora_rank": 4}]}
    rows = make_experiences(1, tasks=3)
    configs = {
        **{mode: make_config(algorithm={"loss_agg_mode": mode, **TERMS}) for mode in MODES},
        "adapter": make_config(algorithm=TERMS, model=fresh),
        "whole distributions": make_config(algorithm=TERMS | {"kl_loss_fn": "full"}),
        "adapter, whole distributions": make_config(algorithm=TERMS | {"kl_loss_fn": "full"}, model=fresh),
        "reward KL": make_config(algorithm={"advantage_fn": "reinforceplusplus", "kl_penalty_fn": "k1"}),
        "qwen3": make_config(algorithm=TERMS, model=other_family(tmp_path / "qwen3", "qwen3")),
        "gpt2": make_config(algorithm=TERMS, model=other_family(tmp_path / "gpt2", "gpt2")),
        **{
            family: make_config(algorithm=TERMS, model=other_family(tmp_path / family, family))
            for family in ("gemma2", "bamba", "bloom")
        },
        "gpt2, adapter": make_config(algorithm=TERMS, model=other_family(tmp_path / "gpt2", "gpt2") | fresh),
        "shards kept": make_config(algorithm=TERMS, trainer=with_actor(reshard_after_forward=False)),
        "prefetch": make_config(algorithm=TERMS, trainer=with_actor(forward_prefetch=True)),
        "groups of two": make_config(algorithm=TERMS, trainer=with_actor(fsdp_size=2)),
        "whole": make_config(algorithm=TERMS, trainer=with_actor(wrap_policy={"disable": True})),
    }
    chosen = list(configs) if world == 2 else [MODES[0], "adapter", "reward KL", "groups of two"]
    calls = [(tree(configs[name]), BY_ROWS, rows) for name in chosen]
    calls.append((tree(make_config(algorithm=ALGORITHM)), BY_ROWS, make_pairs(7)))
    alone = rank_calls.gradients(ALONE, calls)
    for of_rank in pool.run(world, rank_calls.gradients, calls):
        for expected, found in zip(alone, of_rank, strict=True):
            assert_same(expected, found, 1e-6)


@pytest.mark.difference("`use_orig_params`, `fsdp` and `fsdp2`")
@pytest.mark.parametrize("settings", [BY_ROWS, BY_TOKENS])
def test_training_with_everything_at_once_is_that_of_one_worker(
    make_config: Maker, pool: RankPool, settings: dict[str, Any]
) -> None:
    config = everything(make_config)
    made = one_worker(config)
    steps = [experiences_of_everything(made, step) for step in (1, 2, 3)]
    weights, metrics = rank_calls.train(ALONE, tree(config), steps, settings)
    answers = pool.run(2, rank_calls.train, tree(config), steps, settings)
    assert 0.2 < metrics[-1]["rollout_corr/rollout_rs_masked_fraction"] < 0.8 and "critic/grad_norm" in metrics[-1]
    for found, measured in answers:
        assert measured == answers[0][1]  # to the bit, and so is what is decided by it
        for expected, step in zip(metrics, measured, strict=True):
            assert step == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in expected.items()}
        assert max(float((tensor - found[name]).abs().max()) for name, tensor in weights.items()) < MOVED


def test_passes_mini_batches_clip_and_schedule_are_those_of_one_worker(make_config: Maker, pool: RankPool) -> None:
    actor = {"ppo_epochs": 2, "ppo_mini_batch_size": 3, "shuffle": True}
    optimizer = {"optimizer_type": "sgd", "lr": 0.5, "lr_scheduler_type": "linear", "lr_warmup_steps": 2}
    algorithm = {"loss_agg_mode": "seq-mean-token-mean", "optimizer": optimizer, **TERMS}
    tuned = {"grad_clip": 0.05, "trainer_config": {"actor_rollout_ref": {"actor": actor}}}
    config = make_config(algorithm=algorithm, trainer=tuned)
    steps = [make_experiences(step, tasks=2) for step in (1, 2, 3)]
    weights, metrics = rank_calls.train(ALONE, tree(config), steps, BY_ROWS)
    assert metrics[-1]["actor/grad_norm"] > 0.1
    for is_balanced in (True, False):
        tree_of_ranks = tree(make_config(algorithm=algorithm, trainer=tuned | {"balance_batch": is_balanced}))
        for found, measured in pool.run(2, rank_calls.train, tree_of_ranks, steps, BY_ROWS):
            assert max(float((tensor - found[name]).abs().max()) for name, tensor in weights.items()) < 2e-6
            assert measured[-1] == {k: pytest.approx(v, rel=1e-5, abs=1e-6) for k, v in metrics[-1].items()}


def test_a_gradient_that_is_not_finite_skips_the_step_on_every_rank(make_config: Maker, pool: RankPool) -> None:
    config = make_config(trainer={"grad_clip": 1.0})
    steps = [make_experiences(step, tasks=2) for step in (1, 2)]
    bad = steps[1][3]
    bad.advantages = torch.full_like(bad.advantages, 3e38)
    answers = pool.run(2, rank_calls.train, tree(config), steps, BY_ROWS)
    good = pool.run(2, rank_calls.train, tree(config), steps[:1], BY_ROWS)
    for (found, measured), (before, _) in zip(answers, good, strict=True):
        assert [m["actor/skipped_steps"] for m in measured] == [0.0, 1.0]
        assert all(torch.equal(tensor, before[name]) for name, tensor in found.items())
    written = sorted(file.name for file in (Path(config.checkpoint_job_dir) / "quarantine").iterdir())
    assert written == ["step_2_1.json", "step_2_1.safetensors"]


# ------------------------------------------------------------------------- shares
@settings(max_examples=80)
@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=24),
    world=st.integers(1, 6),
    max_tokens=st.none() | st.integers(1, 120),
    max_rows=st.none() | st.integers(1, 5),
    is_balanced=st.booleans(),
)
def test_shares_hold_every_row_once_and_every_rank_has_as_many_micro_batches(
    lengths: list[int], world: int, max_tokens: int | None, max_rows: int | None, is_balanced: bool
) -> None:
    batch = collate([_row(index, length) for index, length in enumerate(lengths)])
    limits = {"max_tokens": max_tokens, "max_rows": max_rows}
    work = [
        split_work(batch, range(len(lengths)), index=index, num_shares=world, is_balanced=is_balanced, **limits)
        for index in range(world)
    ]
    assert len({len(own) for own in work}) == 1
    counted = [row for own in work for micro in own if not micro.is_filler for row in micro.rows]
    assert sorted(counted) == list(range(len(lengths)))
    assert all(micro.rows for own in work for micro in own)
    if world == 1:
        assert [micro.rows for micro in work[0]] == micro_batches(batch, range(len(lengths)), **limits)


def test_balanced_shares_have_like_work_and_equal_sizes_where_rows_are_counted() -> None:
    lengths = [60, 4, 4, 4, 58, 4, 4, 4, 30, 28, 5, 3]
    batch = collate([_row(index, length) for index, length in enumerate(lengths)])

    def tokens(is_balanced: bool, has_equal_sizes: bool) -> list[int]:
        shares = share_rows(batch, range(12), num_shares=3, is_balanced=is_balanced, has_equal_sizes=has_equal_sizes)
        assert not has_equal_sizes or [len(share) for share in shares] == [4, 4, 4]
        return sorted(sum(lengths[row] for row in share) for share in shares)

    assert tokens(False, True) == [66, 70, 72]
    assert max(tokens(True, False)) - min(tokens(True, False)) <= 8
    assert max(tokens(True, True)) <= 72


def _row(index: int, length: int) -> Any:
    row = make_experiences(index + 1, tasks=1, repeats=1)[0]
    row.tokens = torch.cat([row.tokens[: row.prompt_length], torch.full((length,), 5)])
    for name in ("logprobs", "advantages"):
        setattr(row, name, torch.zeros(length))
    row.action_mask = torch.ones(length, dtype=torch.bool)
    return row
