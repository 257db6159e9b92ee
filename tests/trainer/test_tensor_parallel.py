"""Ranks that share the matrices of each layer compute what one worker computes: gradients, training, checkpoints."""

from __future__ import annotations

import json
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
from tests.trainer.test_ranks import BY_ROWS, BY_TOKENS, other_family, tree, with_actor
from tests.trainer.test_sharded_checkpoint import SGD, _moments, run
from tests.trainer.test_together import _config as everything
from tests.trainer.test_together import _experiences as experiences_of_everything
from tests.trainer.test_update import TERMS, assert_same
from tests.trainer.test_update import worker as one_worker
from trinity.common.config import Config
from trinity.trainer.verl.parallel.exchange import local
from trinity.trainer.verl.parallel.ranks import Ranks

Maker = Callable[..., Config]


def sizes(tensor: int = 2, **more: Any) -> dict[str, Any]:
    """Return the section `trainer` of ranks that share matrices."""
    return {"trainer_strategy": "megatron", "megatron": {"tensor_model_parallel_size": tensor, **more}}


def biased(path: Path) -> dict[str, Any]:
    """Return the section `model` of a Llama with biases and an output layer of its own, in sizes that divide badly."""
    odd = {"hidden_size": 66, "num_attention_heads": 6, "head_dim": 10, "intermediate_size": 90, "attention_bias": True}
    tiny_model(path, "llama", seed=1, scale=3.0, tie_word_embeddings=False, **odd)
    return {"model_path": str(path)}


@pytest.mark.parametrize("world", [2, 4])
def test_shared_matrices_do_not_change_the_gradient(
    make_config: Maker, tmp_path: Path, pool: RankPool, world: int
) -> None:
    rows = make_experiences(1, tasks=3)
    by_rank, by_tokens = (sizes(sequence_parallel=flag) for flag in (False, True))
    models = {family: {"model": other_family(tmp_path / family, family)} for family in ("qwen2", "qwen3")}
    models["biased"] = {"model": biased(tmp_path / "biased")}
    full = TERMS | {"kl_loss_fn": "full"}
    calls = [
        (tree(make_config(algorithm=TERMS, trainer=by_rank)), BY_ROWS, rows),
        (tree(make_config(algorithm=TERMS, trainer=by_tokens)), BY_TOKENS, rows),
        (tree(make_config(algorithm=full, trainer=by_rank, **models["qwen3"])), BY_ROWS, rows),
        (tree(make_config(algorithm=TERMS, trainer=by_tokens, **models["qwen3"])), BY_ROWS, rows),
        (tree(make_config(algorithm=TERMS, trainer=by_rank, **models["biased"])), BY_TOKENS, rows),
        (tree(make_config(algorithm=full, trainer=by_tokens, **models["biased"])), BY_ROWS, rows),
        (tree(make_config(algorithm=TERMS, trainer=by_tokens, **models["qwen2"])), BY_TOKENS, rows),
    ]
    calls = calls if world == 2 else calls[1:5]
    alone = rank_calls.gradients(ALONE, calls)
    for of_rank in pool.run(world, rank_calls.gradients, calls):
        for expected, found in zip(alone, of_rank, strict=True):
            assert_same(expected, found, 1e-6)


def held_shapes(ranks: Ranks, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of what this rank holds of each parameter of the policy."""
    model = rank_calls.worker(ranks, config).model
    return {name: tuple(local(parameter).shape) for name, parameter in model.named_parameters()}


def test_a_rank_holds_its_part_of_the_matrices_and_the_group_the_rest(make_config: Maker, pool: RankPool) -> None:
    config = tree(make_config(trainer=sizes()))
    two, four = (pool.run(world, held_shapes, config)[1] for world in (2, 4))
    layer = "model.layers.1"
    assert two[f"{layer}.self_attn.q_proj.weight"] == (32, 64) and four[f"{layer}.self_attn.q_proj.weight"] == (16, 64)
    assert two[f"{layer}.mlp.down_proj.weight"] == (64, 64) and four[f"{layer}.mlp.down_proj.weight"] == (32, 64)
    assert two[f"{layer}.input_layernorm.weight"] == (64,) and four[f"{layer}.input_layernorm.weight"] == (32,)


def test_training_with_everything_at_once_over_shared_matrices(make_config: Maker, pool: RankPool) -> None:
    values = tree(everything(make_config))
    del values["model"]["lora_configs"]
    config = Config.model_validate(values)
    made = one_worker(config)
    steps = [experiences_of_everything(made, step) for step in (1, 2, 3)]
    weights, metrics = rank_calls.train(ALONE, tree(config), steps, BY_ROWS)
    values = tree(config)
    values["trainer"] |= sizes()
    answers = pool.run(4, rank_calls.train, values, steps, BY_ROWS)
    assert all(measured == answers[0][1] for _, measured in answers)
    found, measured = answers[-1]
    assert "critic/grad_norm" in metrics[-1]
    for expected, step in zip(metrics, measured, strict=True):
        assert step == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in expected.items()}
    assert max(float((tensor - found[name]).abs().max()) for name, tensor in weights.items()) < 1e-4


def test_checkpoints_of_shared_matrices_go_to_any_ranks_and_back_bit_for_bit(
    make_config: Maker, tmp_path: Path, pool: RankPool
) -> None:
    model = {"model": biased(tmp_path / "model")}
    plain = tree(make_config(**model))
    shared, copies = (tree(make_config(trainer=sizes() | more, **model)) for more in ({}, with_actor(fsdp_size=1)))
    first, _ = run(pool, 4, shared, None, [make_experiences(1)], 0, tmp_path / "four")
    way = [("again_1", 1, plain, "four"), ("again_2", 2, shared, "again_1"), ("again_4", 4, copies, "again_2")]
    for name, world, config, source in way:
        read, _ = run(pool, world, config, tmp_path / source, [], 1, tmp_path / name)
        assert all(torch.equal(tensor, read[name]) for name, tensor in first.items()), name
    moments = [_moments(tmp_path / name, world) for name, world in (("four", 4), *((n, w) for n, w, _, _ in way))]
    assert len(moments[0]) > 20
    assert all(torch.equal(tensor, other[key]) for other in moments[1:] for key, tensor in moments[0].items())
    config_file = tmp_path / "four" / "actor" / "fsdp_config.json"
    assert json.loads(config_file.read_text()) == {"FSDP_version": 2, "world_size": 4}


def test_one_two_four_ranks_go_on_as_one_worker_does(make_config: Maker, tmp_path: Path, pool: RankPool) -> None:
    alone_config, config = (tree(make_config(algorithm=SGD, trainer=trainer)) for trainer in ({}, sizes()))
    steps = [make_experiences(number) for number in (1, 2, 3)]
    alone, metrics = rank_calls.train(ALONE, alone_config, steps, BY_ROWS)
    source = None
    for number, (world, values) in enumerate(((2, config), (1, alone_config), (4, config))):
        target = tmp_path / f"step_{number + 1}"
        last = run(pool, world, values, source, steps[number : number + 1], number, target, number == 2)
        assert last[1][0] == {k: pytest.approx(v, rel=1e-4, abs=1e-6) for k, v in metrics[number].items()}
        source = target
    assert max(float((tensor - last[0][name]).abs().max()) for name, tensor in alone.items()) < 1e-6
    exported = dict(
        AutoModelForCausalLM.from_pretrained(tmp_path / "step_3" / "actor" / "huggingface").named_parameters()
    )
    assert all(torch.equal(tensor, exported[name].detach()) for name, tensor in last[0].items())
