"""A function is made as the algorithm section says, and what it refuses names its own key."""

from __future__ import annotations

from typing import Any

import pytest

from trinity.algorithm import KL_FN, POLICY_LOSS_FN
from trinity.algorithm.building import build
from trinity.common.config import AlgorithmConfig, Config
from trinity.common.errors import ConfigError
from trinity.explorer.assembly import build_advantage_fn
from trinity.trainer.advantage import batch_advantage_of
from trinity.trainer.verl.settings import loss_of

PPO = {"policy_loss_fn": "ppo", "policy_loss_fn_args": {}}
GAE = {"advantage_fn": "ppo", "kl_penalty_fn": "k1"}
REFUSED = [
    (build_advantage_fn, {"advantage_fn": "grpo", "advantage_fn_args": {"epsilom": 1}}, "advantage_fn_args of grpo"),
    (batch_advantage_of, GAE | {"advantage_fn_args": {"gama": 1.0}}, "advantage_fn_args of ppo"),
    (batch_advantage_of, GAE | {"kl_penalty_fn_args": {"kl_cof": 1.0}}, "kl_penalty_fn_args of k1"),
    (loss_of, {"policy_loss_fn": "sppo", "policy_loss_fn_args": {"b": 1}}, "policy_loss_fn_args of sppo"),
    (loss_of, PPO | {"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_cof": 1.0}}, "kl_loss_fn_args of k2"),
    (
        loss_of,
        PPO | {"entropy_loss_fn": "default", "entropy_loss_fn_args": {"c": 1}},
        "entropy_loss_fn_args of default",
    ),
]


@pytest.mark.parametrize(("make", "section", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_an_argument_that_a_component_does_not_take_names_the_key_and_the_component(
    make: Any, section: dict[str, Any], words: str
) -> None:
    config = Config(algorithm=AlgorithmConfig(**section))
    with pytest.raises(ConfigError, match=f"algorithm.{words}: .*unexpected keyword argument") as caught:
        make(config)
    assert caught.value.code == "E1302"


def test_what_is_not_written_is_the_default_or_nothing() -> None:
    empty = AlgorithmConfig(policy_loss_fn=None, advantage_fn=None)
    assert build(empty, "advantage_fn") is None
    made = build(empty, "policy_loss_fn", default="gspo", loss_agg_mode="token-mean")
    assert type(made) is POLICY_LOSS_FN.get("gspo") and made.loss_agg_mode == "token-mean"
    assert type(build(AlgorithmConfig(kl_loss_fn="k3"), "kl_loss_fn", default="k1")) is KL_FN.get("k3")


def test_an_argument_of_the_run_is_not_the_sections_to_say() -> None:
    section = AlgorithmConfig(sample_strategy="default", sample_strategy_args={"batch_size": 3})
    with pytest.raises(ConfigError, match="sample_strategy_args of default: .*batch_size") as caught:
        build(section, "sample_strategy", None, batch_size=2)
    assert caught.value.code == "E1302"
