"""What a plugin declares of itself is what the run does, as it is for the class that it derives from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.algorithm.plugin_shapes import HEAD
from tests.algorithm.test_plugin_declarations import _examined
from tests.common.config.conftest import MINIMAL
from tests.common.config.registered_shapes import HEAD as OF_OTHERS
from tests.loaded_plugins import forget_plugins
from trinity.algorithm import ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN, SAMPLE_STRATEGY, AdvantageFn, PolicyLossFn
from trinity.buffer.operators import EXPERIENCE_OPERATORS
from trinity.catalogue import catalogue_of
from trinity.common.errors import ConfigError
from trinity.explain.aggregation import aggregation
from trinity.explain.effective_loss import effective_loss
from trinity.launch.validation import check
from trinity.trainer.advantage import BatchAdvantage
from trinity.trainer.correction import correction_of
from trinity.trainer.verl.loss import LossFn
from trinity.utils.plugin_loader import load_plugins


@pytest.fixture(autouse=True)
def _no_plugins_after_each_test() -> Iterator[None]:
    yield
    forget_plugins()


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
        (KL.format("of_distributions = True"), {"advantage_fn": "grpo", "kl_penalty_fn": "mine"}, "E1831",
         "`algorithm.kl_penalty_fn: mine` has no effect"),
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


OWN_LOSS = """
from trinity.algorithm.policy_loss_fn.opmd import OPMDPolicyLossFn
from trinity.algorithm.policy_loss_fn.ppo import PPOPolicyLossFn

@POLICY_LOSS_FN.register_module("mine")
class Mine({}):
    {}
"""
CALL = "def __call__(self, logprob, action_mask, advantages{}):\n        return logprob.sum(), {{}}"
TYPE = """
@ALGORITHM_TYPE.register_module("of_mine")
class OfMine(AlgorithmType):
    use_reference = True
    defaults = {"policy_loss_fn": "mine", "policy_loss_fn_args": {"width": 0.3}}
"""


@pytest.mark.parametrize(
    ("base", "body", "is_taken"),
    [
        ("Base", CALL.format(""), False),
        ("Base", CALL.format(", rollout_is_weights=None"), True),
        ("Base", CALL.format(", **tensors"), False),  # taken and never read: weights in them would be lost
        ("Base", CALL.format(", **tensors").replace("logprob.sum()", "tensors['rollout_is_weights'].sum()"), True),
        ("Base", CALL.format(", **more").replace("logprob.sum()", "sum(more[n].sum() for n in more)"), True),
        ("OPMDPolicyLossFn", "pass", False),  # so are its `**kwargs`
        ("PPOPolicyLossFn", "pass", True),
    ],
)
def test_weights_are_refused_by_the_run_where_validate_refuses_them(
    tmp_path: Path, base: str, body: str, is_taken: bool
) -> None:
    chosen = {"policy_loss_fn": "mine", "rollout_correction": {"rollout_is": "token"}}
    config, problems = _examined(tmp_path, HEAD + OWN_LOSS.format(base, body), chosen)
    assert [p.code for p in problems if p.is_error] == ([] if is_taken else ["E1852"])
    load_plugins(tmp_path / "plugins")
    none, no_entropy = KL_FN.get("none")(), ENTROPY_LOSS_FN.get("none")()
    loss_fn = LossFn(POLICY_LOSS_FN.get("mine")(), none, no_entropy, loss_agg_mode="token-mean")
    if is_taken:
        assert correction_of(config, loss_fn) is not None
        return
    algorithm = config.algorithm.model_copy(update={"bypass_old_logprobs": False})
    with pytest.raises(ConfigError, match="does not read rollout_is_weights") as caught:
        correction_of(config.model_copy(update={"algorithm": algorithm}), loss_fn)
    assert caught.value.code == "E1852"


def test_a_loss_says_itself_which_loss_stands_for_it_in_bypass_mode(tmp_path: Path) -> None:
    body = (
        'in_bypass_mode = "bypass_mode"\n    names_in_bypass_mode = {"width": "clip_ratio"}\n\n'
        f"    def __init__(self, backend='verl', width=0.2):\n        self.width = width\n\n    {CALL.format('')}"
    )
    text = HEAD + OWN_LOSS.format("Base", body) + TYPE
    section = {"algorithm_type": "of_mine", "rollout_correction": {"bypass_mode": True}}
    config, problems = _examined(tmp_path, text, section)
    assert not [p for p in problems if p.is_error], problems
    assert config.algorithm.policy_loss_fn == "bypass_mode"
    assert (config.algorithm.policy_loss_fn_args or {})["clip_ratio"] == 0.3


def test_another_loss_over_ppo_is_not_taken_for_it_in_bypass_mode(tmp_path: Path) -> None:
    text = HEAD + OWN_LOSS.format("PPOPolicyLossFn", "pass") + TYPE.replace('{"width": 0.3}', "{}")
    section = {"algorithm_type": "of_mine", "rollout_correction": {"bypass_mode": True}}
    problems = [p for p in _examined(tmp_path, text, section)[1] if p.is_error]
    assert [p.code for p in problems] == ["E1852"] and "a policy loss of its own" in problems[0].message


@pytest.mark.parametrize("kind", ["operator", "sample_strategy"])
def test_a_deprecated_name_is_told_whoever_registers_it(tmp_path: Path, kind: str) -> None:
    strategy = STRATEGY.format("sample_strategy", "DefaultSampleStrategy")
    operator = OF_OTHERS + (
        '@EXPERIENCE_OPERATORS.register_module("mine")\nclass Mine(RewardFilter):\n    """Keeps some."""\n'
    )
    text = HEAD + (strategy if kind == "sample_strategy" else operator)
    text = text.replace('register_module("mine")', 'register_module("mine", deprecated_for="newer")')
    data = {"data_processor": {"experience_pipeline": {"operators": [{"name": "mine"}]}}}
    sections = {} if kind == "sample_strategy" else data
    problems = _examined(tmp_path, text, {"sample_strategy": "mine"} if not sections else {}, **sections)[1]
    (problem,) = [p for p in problems if p.code == "W1301"]
    assert problem.message.endswith(": mine` is deprecated") and str(problem.suggestion).endswith(": newer`")
    read = catalogue_of([tmp_path / "plugins"])[0].plugin_entries[kind]["mine"]
    load_plugins(tmp_path / "plugins")
    registered = {"operator": EXPERIENCE_OPERATORS, "sample_strategy": SAMPLE_STRATEGY}[kind].contents["mine"]
    assert read == registered and read.doc == "deprecated, the same as newer"


AGGREGATED = """
    {}

    def __init__(self, backend="verl"{}):
        super().__init__(backend)

    {}
"""


@pytest.mark.parametrize(
    ("attribute", "argument", "algorithm", "mode", "reason"),
    [
        ("loss_agg_mode = 'seq-mean-token-sum'", "", {}, "token-mean",
         "default; the policy loss mine has its own, seq-mean-token-sum"),
        ("", "", {}, "token-mean", "default"),
        ("", ", loss_agg_mode='seq-mean-token-sum'", {}, "seq-mean-token-sum", "default of the policy loss"),
        ("", ", loss_agg_mode='token-mean'", {"policy_loss_fn_args": {"loss_agg_mode": "seq-mean-token-mean"}},
         "seq-mean-token-mean", "algorithm.policy_loss_fn_args.loss_agg_mode"),
        ("", ", width=0.1, loss_agg_mode='token-mean'", {"algorithm_type": "of_mine"}, "seq-mean-token-sum",
         "default of algorithm_type of_mine"),
        ("convention = 'verl'", ", loss_agg_mode='token-sum'", {}, "token-mean",
         "default; token-sum of algorithm.policy_loss_fn_args.loss_agg_mode is for a policy loss alone"),
    ],
)  # fmt: skip
def test_an_aggregation_says_where_it_comes_from(
    tmp_path: Path, attribute: str, argument: str, algorithm: dict[str, Any], mode: str, reason: str
) -> None:
    loss = OWN_LOSS.format("Base", AGGREGATED.format(attribute, argument, CALL.format("")).strip())
    of_type = TYPE.replace('{"width": 0.3}', '{"loss_agg_mode": "seq-mean-token-sum"}')
    chosen = {"policy_loss_fn": "mine"} if "algorithm_type" not in algorithm else {}
    assert not [p for p in _examined(tmp_path, HEAD + loss + of_type, chosen | algorithm)[1] if p.is_error]
    plan = check(tmp_path / "run.yaml", plugin_dirs=(tmp_path / "plugins",), schema_only=True)[0]
    (derived,) = [d for d in plan.stages[0].derived if d.key == "algorithm.loss_agg_mode"]
    assert (derived.value, derived.reason) == (mode, reason)


def test_the_effective_loss_has_the_aggregation_that_a_class_fixes(tmp_path: Path) -> None:
    attributes = "loss_agg_mode = 'seq-mean-token-sum'\n    formula = '-A logprob'"
    loss = OWN_LOSS.format("Base", AGGREGATED.format(attributes, "", CALL.format("")).strip())
    assert not [p for p in _examined(tmp_path, HEAD + loss, {"policy_loss_fn": "mine"})[1] if p.is_error]
    plan = check(tmp_path / "run.yaml", plugin_dirs=(tmp_path / "plugins",), schema_only=True)[0]
    assert f"P = {aggregation('seq-mean-token-sum')} -A logprob" in effective_loss(plan.stages[0]).terms[0][0]
