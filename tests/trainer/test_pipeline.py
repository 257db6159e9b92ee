"""Stages of layers compute what one worker computes: gradients, training, checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny import tiny_model
from tests.trainer import rank_calls
from tests.trainer.conftest import make_experiences
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_pairs import ALGORITHM, make_pairs
from tests.trainer.test_ranks import BY_ROWS, BY_TOKENS, other_family, tree, with_actor
from tests.trainer.test_sharded_checkpoint import _moments, run
from tests.trainer.test_tensor_parallel import biased
from tests.trainer.test_together import _config as everything
from tests.trainer.test_together import _experiences as experiences_of_everything
from tests.trainer.test_update import TERMS, assert_same
from tests.trainer.test_update import worker as one_worker
from trinity.common.config import Config
from trinity.common.errors import ConfigError
from trinity.trainer.verl.parallel.ranks import Ranks

Maker = Callable[..., Config]


def sizes(stages: int = 2, tensor: int = 1, **more: Any) -> dict[str, Any]:
    """Return the section `trainer` of ranks that share layers."""
    both = {"pipeline_model_parallel_size": stages, "tensor_model_parallel_size": tensor}
    return {"trainer_strategy": "megatron", "megatron": both | more}


def deep(path: Path) -> dict[str, Any]:
    """Return the section `model` of a model of five layers, which stages share unequally."""
    tiny_model(path, "qwen3", seed=1, scale=3.0, num_hidden_layers=5)
    return {"model_path": str(path)}


@pytest.mark.parametrize("world", [2, 4])
def test_stages_do_not_change_the_gradient(make_config: Maker, tmp_path: Path, pool: RankPool, world: int) -> None:
    rows = make_experiences(1, tasks=3)
    models = {"biased": {"model": biased(tmp_path / "biased")}, "deep": {"model": deep(tmp_path / "deep")}}
    full = TERMS | {"kl_loss_fn": "full"}
    calls = [
        (tree(make_config(algorithm=TERMS, trainer=sizes())), BY_ROWS, rows),
        (tree(make_config(algorithm=full, trainer=sizes(), **models["biased"])), BY_TOKENS, rows),
        (tree(make_config(algorithm=TERMS, trainer=sizes(), **models["deep"])), BY_ROWS, rows),
        (tree(make_config(algorithm=ALGORITHM, trainer=sizes())), BY_ROWS, make_pairs(7)),
    ]
    if world == 4:
        calls = calls[1:2]
        calls.append((tree(make_config(algorithm=TERMS, trainer=sizes(4), **models["deep"])), BY_ROWS, rows))
        in_host = sizes(tensor=2) | with_actor(dtype="float32", offload_policy=True)
        calls.append((tree(make_config(algorithm=TERMS, trainer=in_host)), BY_ROWS, rows))
        for by_tokens in (False, True):
            both = sizes(tensor=2, sequence_parallel=by_tokens)
            calls.append((tree(make_config(algorithm=full, trainer=both, **models["deep"])), BY_ROWS, rows))
    alone = rank_calls.gradients(ALONE, calls)
    for of_rank in pool.run(world, rank_calls.gradients, calls):
        for expected, found in zip(alone, of_rank, strict=True):
            assert expected.keys() == found.keys()
            assert_same(expected, found, 1e-6)


def test_training_with_everything_at_once_over_stages_of_shared_matrices(make_config: Maker, pool: RankPool) -> None:
    values = tree(everything(make_config))
    del values["model"]["lora_configs"]
    made = one_worker(Config.model_validate(values))
    steps = [experiences_of_everything(made, step) for step in (1, 2, 3)]
    weights, metrics = rank_calls.train(ALONE, values, steps, BY_ROWS)
    values["trainer"] |= sizes(tensor=2)
    answers = pool.run(4, rank_calls.train, values, steps, BY_ROWS)
    assert all(measured == answers[0][1] for _, measured in answers)
    found, measured = answers[-1]
    assert found.keys() == weights.keys()
    for expected, step in zip(metrics, measured, strict=True):
        assert step == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in expected.items()}
    assert max(float((weight - found[name]).abs().max()) for name, weight in weights.items()) < 1e-4


def test_checkpoints_of_stages_go_to_any_ranks_and_back_bit_for_bit(
    make_config: Maker, tmp_path: Path, pool: RankPool
) -> None:
    model = {"model": biased(tmp_path / "model")}
    plain, two, both, matrices = (
        tree(make_config(trainer=trainer, **model)) for trainer in ({}, sizes(), sizes(tensor=2), sizes(1, 2))
    )
    first, _ = run(pool, 4, both, None, [make_experiences(1)], 0, tmp_path / "four", True)
    way = [("one", 1, plain, "four"), ("two", 2, two, "one"), ("wide", 4, two, "two"), ("shared", 2, matrices, "wide")]
    for name, world, config, source in way:
        read, _ = run(pool, world, config, tmp_path / source, [], 1, tmp_path / name)
        assert read.keys() == first.keys()
        assert all(torch.equal(tensor, read[name]) for name, tensor in first.items()), name
    moments = [_moments(tmp_path / name, world) for name, world in (("four", 4), *((n, w) for n, w, _, _ in way))]
    assert len(moments[0]) > 20 and all(other.keys() == moments[0].keys() for other in moments)
    assert all(torch.equal(tensor, other[key]) for other in moments[1:] for key, tensor in moments[0].items())
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "four" / "actor" / "huggingface").state_dict()
    assert all(torch.equal(tensor, exported[name]) for name, tensor in first.items())


def test_a_run_over_stages_that_is_continued_ends_with_the_bits_of_one_that_was_not(
    make_config: Maker, tmp_path: Path, pool: RankPool
) -> None:
    config = tree(
        make_config(algorithm=TERMS | {"algorithm_type": "ppo", "advantage_fn": "ppo"}, trainer=sizes(tensor=2))
    )
    steps = [make_experiences(number) for number in (1, 2, 3)]
    whole, metrics = run(pool, 4, config, None, steps, 0, None)
    run(pool, 4, config, None, steps[:2], 0, tmp_path / "half")
    rest, measured = run(pool, 4, config, tmp_path / "half", steps[2:], 2, None)
    assert any(name.startswith("critic.") for name in whole)
    assert all(torch.equal(tensor, rest[name]) for name, tensor in whole.items()) and measured == metrics[2:]


def held_names(ranks: Ranks, config: dict[str, Any]) -> set[str]:
    """Return the names of the parameters that this rank holds."""
    return {name for name, _ in rank_calls.worker(ranks, config).model.named_parameters()}


def test_a_stage_holds_its_own_layers_and_what_lies_outside_of_them(make_config: Maker, pool: RankPool) -> None:
    first, second = pool.run(2, held_names, tree(make_config(trainer=sizes())))
    assert {name for name in first if "layers.1." in name} == set() != {name for name in first if "layers.0." in name}
    assert {name for name in second if "layers.0." in name} == set()
    assert first & second == {"model.embed_tokens.weight", "model.norm.weight"}


def refusals(ranks: Ranks, configs: list[dict[str, Any]]) -> list[str]:
    """Return the error with which a worker of each configuration is refused."""
    messages = []
    for config in configs:
        with pytest.raises(ConfigError) as caught:
            rank_calls.worker(ranks, config)
        messages.append(f"{caught.value.code} {caught.value}")
    return messages


def test_a_model_that_is_known_when_it_is_loaded_is_refused_with_what_fits(
    make_config: Maker, tmp_path: Path, pool: RankPool
) -> None:
    gpt2 = {"model": other_family(tmp_path / "gpt2", "gpt2")}
    configs = [make_config(trainer=sizes(4)), make_config(trainer=sizes(1, 4))]
    configs += [make_config(trainer=sizes(), **gpt2), make_config(trainer=sizes(1, 2), **gpt2)]
    words = ("E1849 .*2 layers", "E1855 .*2 key-value heads.*choose one of 1, 2", *["E1856 .*gpt2.*fsdp2"] * 2)
    for found in pool.run(4, refusals, [tree(config) for config in configs]):
        assert all(re.search(pattern, message) for pattern, message in zip(words, found, strict=True)), found
