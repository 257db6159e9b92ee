"""What a plugin declares of itself is what the run does, as it is for the class that it derives from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.algorithm.plugin_shapes import HEAD
from tests.algorithm.test_plugin_declarations import _examined
from tests.common.config.conftest import MINIMAL
from trinity.algorithm import ENTROPY_LOSS_FN, KL_FN, AdvantageFn, PolicyLossFn
from trinity.trainer.advantage import BatchAdvantage
from trinity.trainer.verl.loss import LossFn


class NeedsReference(PolicyLossFn):
    """Declares what its `**kwargs` hold."""

    needs = frozenset({"advantages", "ref_logprob"})

    def __call__(self, logprob: Any, action_mask: Any, **kwargs: Any) -> Any:
        return (logprob - kwargs["ref_logprob"]).sum(), {}


class NeedsValues(AdvantageFn):
    """Declares what its `**tensors` hold."""

    needs = frozenset({"values", "token_level_rewards"})

    def __call__(self, action_mask: Any, **tensors: Any) -> Any:
        return tensors["values"], tensors["values"], {}


class Terse(PolicyLossFn):
    """Asks for no mask, and says less than it asks for."""

    needs = frozenset({"ref_logprob"})

    def __call__(self, logprob: Any, advantages: Any) -> Any:  # type: ignore[override]
        return (logprob * advantages).sum(), {}


def test_a_loss_gets_the_tensors_that_it_declares() -> None:
    none, no_entropy = KL_FN.get("none")(), ENTROPY_LOSS_FN.get("none")()
    loss_fn = LossFn(NeedsReference(), none, no_entropy, loss_agg_mode="token-mean")
    assert loss_fn.needs_reference and loss_fn.reads_ref_logprob
    assert loss_fn.policy_loss.select_keys == {"action_mask", "advantages", "ref_logprob"}
    terse = LossFn(Terse(), none, no_entropy, loss_agg_mode="token-mean")
    assert terse.needs_reference and terse.required >= {"advantages"}
    assert terse.policy_loss.select_keys == {"advantages"}


def test_an_advantage_gets_the_tensors_that_it_declares() -> None:
    made = BatchAdvantage(NeedsValues(), KL_FN.get("none")(), group_size=1)
    assert made.required == {"values", "token_level_rewards", "action_mask"} == made.passed


KL = """
@KL_FN.register_module("mine")
class Mine(KLFn):
    {}

    def calculate_kl(self, logprob, ref_logprob, old_logprob=None):
        return logprob
"""


@pytest.mark.parametrize(
    ("text", "algorithm", "code", "words"),
    [
        (KL.format("of_distributions = True"), {"advantage_fn": "grpo_verl", "kl_penalty_fn": "mine"}, "E1854",
         "`algorithm.kl_penalty_fn: mine` compares whole distributions"),
        (KL.format("needs = {'ref_logprop'}"), {"kl_loss_fn": "mine"}, "E3907", "names `ref_logprop`"),
    ],
)  # fmt: skip
def test_what_the_run_would_refuse_is_refused_before(
    tmp_path: Path, text: str, algorithm: dict[str, Any], code: str, words: str
) -> None:
    problems = _examined(tmp_path, HEAD + text, algorithm)[1]
    assert any(p.code == code and words in p.message for p in problems), problems


STRATEGY = """
from trinity.algorithm.sample_strategy.{0} import {1}

@SAMPLE_STRATEGY.register_module("mine")
class Mine({1}):
    pass
"""
MIX, STALE = ("mix", "MixSampleStrategy"), ("staleness_control", "StalenessControlStrategy")


@pytest.mark.parametrize("base", [MIX, STALE])
def test_a_strategy_over_a_built_in_resolves_as_that(tmp_path: Path, base: tuple[str, str]) -> None:
    read = {"trainer_input": {"auxiliary_buffers": {"sft_dataset": {"path": "demonstrations.jsonl"}}}}
    algorithm = {"algorithm_type": "mix"} if base == MIX else {}
    buffer = yaml.safe_load(MINIMAL)["buffer"] | (read if base == MIX else {})
    sizes = []
    for name in (base[0], "mine"):
        chosen = algorithm | {"sample_strategy": name}
        config, problems = _examined(tmp_path, HEAD + STRATEGY.format(*base), chosen, buffer=buffer)
        assert not [p for p in problems if p.is_error], problems
        sizes.append(config.buffer.train_batch_size)
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize(
    ("base", "arguments", "code"),
    [
        (MIX, {"expert_data_ratio": 1.5}, "E1844"),
        (STALE, {"max_staleness": -2}, "E1302"),
        (STALE, {"max_staleness": "old"}, "E1302"),
    ],
)
def test_a_strategy_over_a_built_in_is_checked_as_that(
    tmp_path: Path, base: tuple[str, str], arguments: dict[str, Any], code: str
) -> None:
    for name in (base[0], "mine"):
        chosen = {"sample_strategy": name, "sample_strategy_args": arguments}
        problems = _examined(tmp_path, HEAD + STRATEGY.format(*base), chosen)[1]
        key = f"algorithm.sample_strategy_args.{next(iter(arguments))}"
        assert (code, key) in [(p.code, p.key) for p in problems], (name, problems)
