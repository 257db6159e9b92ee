"""Ranks that share a sequence compute what one worker computes: outputs, gradients, training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.trainer import rank_calls
from tests.trainer.conftest import make_experiences
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_ranks import BY_ROWS, BY_TOKENS, other_family, tree
from tests.trainer.test_together import _config as everything
from tests.trainer.test_together import _experiences as experiences_of_everything
from tests.trainer.test_update import TERMS, assert_same
from tests.trainer.test_update import worker as one_worker
from trinity.common.config import Config
from trinity.common.errors import ConfigError
from trinity.trainer.batch import collate
from trinity.trainer.verl.parallel.ulysses import check_heads

Maker = Callable[..., Config]
TWO = {"ulysses_sequence_parallel_size": 2}
FOUR = {"ulysses_sequence_parallel_size": 4}  # more than the two key-value heads of the model


@pytest.mark.parametrize("world", [2, 4])
def test_shared_sequences_do_not_change_the_gradient(
    make_config: Maker, tmp_path: Path, pool: RankPool, world: int
) -> None:
    sizes = {"trainer": TWO if world == 2 else FOUR}
    gpt2 = {"model": other_family(tmp_path / "gpt2", "gpt2")}
    adapter = {"model": {"lora_configs": [{"lora_rank": 4}]}}
    rows = make_experiences(1, tasks=3)
    calls = [
        (tree(make_config(algorithm=TERMS, **sizes)), BY_ROWS, rows),
        (tree(make_config(algorithm=TERMS | {"kl_loss_fn": "full"}, **sizes, **adapter)), BY_TOKENS, rows),
        (tree(make_config(algorithm=TERMS, **sizes, **gpt2)), BY_ROWS, rows),
        (tree(make_config(algorithm=TERMS, trainer=TWO)), {"max_rows": 1, "max_tokens": None}, rows),
    ]
    alone = rank_calls.gradients(ALONE, calls)
    for of_rank in pool.run(world, rank_calls.gradients, calls):
        for expected, found in zip(alone, of_rank, strict=True):
            assert_same(expected, found, 1e-6)


def test_outputs_of_a_shared_sequence_are_those_of_one_worker(make_config: Maker, pool: RankPool) -> None:
    config = tree(make_config(trainer=TWO))
    batch = collate(make_experiences(1, tasks=3))
    alone = rank_calls.outputs(ALONE, config, batch)
    assert float(alone["logprob"].abs().max()) > 1.0 and float(alone["entropys"].abs().max()) > 0.1
    for found in pool.run(2, rank_calls.outputs, config, batch):
        assert all(float((tensor - found[name]).abs().max()) < 1e-6 * 10 for name, tensor in alone.items())


def test_training_with_everything_at_once_over_shared_sequences(make_config: Maker, pool: RankPool) -> None:
    config = everything(make_config)
    made = one_worker(config)
    steps = [experiences_of_everything(made, step) for step in (1, 2, 3)]
    weights, metrics = rank_calls.train(ALONE, tree(config), steps, BY_ROWS)
    values = tree(config)
    values["trainer"] |= TWO
    answers = pool.run(4, rank_calls.train, values, steps, BY_ROWS)
    assert all(measured == answers[0][1] for _, measured in answers)
    found, measured = answers[0]
    for expected, step in zip(metrics, measured, strict=True):
        assert step == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in expected.items()}
    assert max(float((tensor - found[name]).abs().max()) for name, tensor in weights.items()) < 1e-4


@pytest.mark.parametrize("size", [3, 8])
def test_heads_that_ranks_cannot_share_are_refused_with_those_that_they_can(make_config: Maker, size: int) -> None:
    made = one_worker(make_config())
    with pytest.raises(ConfigError, match="4 attention heads and 2 key-value heads.*choose one of 1, 2, 4") as caught:
        check_heads(made.model, size)
    assert caught.value.code == "E1836" and torch.is_tensor(made.model.model.norm.weight)
