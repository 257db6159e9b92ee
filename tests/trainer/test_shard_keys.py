"""The keys of `fsdp_config` on several ranks: what each changes, and that it changes no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import rank_calls
from tests.trainer.conftest import make_experiences
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_critic import ppo_config
from tests.trainer.test_ranks import BY_ROWS, tree, with_actor
from tests.trainer.test_update import TERMS, assert_same
from trinity.common.config import Config
from trinity.common.errors import ConfigError
from trinity.trainer.verl.decoder import make_decoder
from trinity.trainer.verl.loading import load_model
from trinity.trainer.verl.parallel.ranks import ShardOptions, blocks_of
from trinity.trainer.verl.shard_settings import actor_options

Maker = Callable[..., Config]
SGD = {"optimizer": {"optimizer_type": "sgd", "lr": 0.3}, **TERMS}


def test_gradients_are_summed_in_the_type_that_is_asked_for(make_config: Maker, pool: RankPool) -> None:
    rows = make_experiences(1, tasks=3)
    reduced = with_actor(mixed_precision={"reduce_dtype": "bf16"}, dtype="float32")
    plain, rounded = (tree(make_config(algorithm=TERMS, trainer=trainer)) for trainer in ({}, reduced))
    at_once = {"max_rows": 99, "max_tokens": None}  # one sum over the ranks
    calls = [(config, at_once, rows) for config in (plain, rounded)]
    exact = rank_calls.gradients(ALONE, calls[:1])[0]
    same, coarse = pool.run(2, rank_calls.gradients, calls)[0]
    assert_same(exact, same, 1e-6)
    errors = {name: float((coarse[name] - tensor).norm() / tensor.norm()) for name, tensor in exact.items()}
    assert 1e-4 < max(errors.values()) < 1e-2  # bfloat16 has 8 bits
    unlike_bf16 = [name for name, tensor in coarse.items() if not torch.equal(tensor, tensor.bfloat16().float())]
    assert unlike_bf16 == [] and any(not torch.equal(t, t.bfloat16().float()) for t in exact.values())


@pytest.mark.difference("`wrap_policy.min_num_params` with FSDP2")
@pytest.mark.parametrize(
    ("keys", "modules"),
    [
        ({}, 3),
        ({"wrap_policy": {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}, 3),
        ({"wrap_policy": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}, 3),
        ({"wrap_policy": {"min_num_params": 10**9}}, 1),
        ({"wrap_policy": {"min_num_params": 100}}, 3),
        ({"wrap_policy": {"disable": True}}, 1),
    ],
)
def test_the_wrap_policy_says_what_is_gathered_on_its_own(
    make_config: Maker, keys: dict[str, Any], modules: int
) -> None:
    config = make_config(trainer=with_actor(**keys))
    model = load_model(str(config.model.model_path), torch.device("cpu"), config=config)
    decoder = make_decoder(model, dtype=torch.float32, recompute=False)
    assert 1 + len(blocks_of(decoder, actor_options(config))) == modules


def test_a_wrapped_class_that_the_model_does_not_have_is_refused_by_name(make_config: Maker) -> None:
    config = make_config()
    model = load_model(str(config.model.model_path), torch.device("cpu"), config=config)
    decoder = make_decoder(model, dtype=torch.float32, recompute=False)
    with pytest.raises(
        ConfigError, match="E5681.*to_wrap: BertLayer is no layer of the model; it has LlamaDecoderLayer"
    ):
        blocks_of(decoder, ShardOptions(layer_classes=("LlamaDecoderLayer", "BertLayer")))


def test_layers_that_are_gathered_together_train_the_same_with_fewer_modules(
    make_config: Maker, pool: RankPool
) -> None:
    steps = [make_experiences(step) for step in (1, 2)]
    found = {}
    for name, keys in (
        ("layers", {"forward_prefetch": True}),
        ("whole", {"wrap_policy": {"min_num_params": 10**9}}),
    ):
        config = make_config(algorithm=SGD, trainer=with_actor(dtype="float32", **keys))
        found[name] = pool.run(2, rank_calls.shards, tree(config), steps, False)[0]
    assert (found["layers"]["modules"], found["whole"]["modules"]) == (3, 1)
    assert found["layers"]["prefetch"] == [0, 1, 0] and found["whole"]["prefetch"] == [0]
    assert_same(found["layers"]["weights"], found["whole"]["weights"], 1e-6)


@pytest.mark.parametrize("world", [1, 2])
def test_weights_that_stay_in_host_memory_are_trained_alike_and_read_by_one_worker(
    make_config: Maker, pool: RankPool, world: int
) -> None:
    steps = [make_experiences(step) for step in (1, 2)]
    held = {"offload_policy": True, "param_offload": True, "optimizer_offload": True}
    critic = {"model": {"fsdp_config": {"offload_policy": False, "optimizer_offload": True}}}
    actor = {"fsdp_config": held | {"dtype": "float32"}}
    trainer = {"trainer_config": {"actor_rollout_ref": {"actor": actor}, "critic": critic}}
    config = ppo_config(make_config, trainer=trainer, algorithm=SGD)
    plain = ppo_config(make_config, algorithm=SGD)
    expected, _ = rank_calls.train(ALONE, tree(plain), steps, BY_ROWS)
    for found in pool.run(world, rank_calls.shards, tree(config), steps, True):
        assert found["in host memory"] and all(found["in host memory"])
        assert found["moved"] == (1, 1)  # those of the critic: the policy's never come as a whole
        assert max(float((tensor - found["weights"][name]).abs().max()) for name, tensor in expected.items()) < 2e-6
    one = rank_calls.worker(ALONE, tree(plain), **BY_ROWS)
    one.load(Path(found["folder"]))
    one.train_step(steps[1], 2)
    assert_same(rank_calls.weights(one), expected, 2e-6)
