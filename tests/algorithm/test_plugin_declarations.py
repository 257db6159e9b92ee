"""What a plugin declares of an algorithm is read before it is imported, as it is from the class, or refused by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.algorithm.plugin_shapes import HEAD, SHAPES
from tests.common.config.conftest import MINIMAL
from tests.common.config.test_dialects import SMALL
from tests.loaded_plugins import forget_plugins
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN, SAMPLE_STRATEGY
from trinity.catalogue import BUILT_IN, catalogue_of
from trinity.common.config import Config, Finding, examine
from trinity.common.errors import ConfigError
from trinity.explain.effective_loss import effective_loss
from trinity.explorer.assembly import build_advantage_fn
from trinity.launch.run import RunOptions, plan_run
from trinity.launch.type_check import check_type_of
from trinity.launch.validation import check
from trinity.utils.plugin_loader import load_plugins
from trinity.utils.registry import Registry

REGISTRIES: dict[str, Registry] = {
    "algorithm_type": ALGORITHM_TYPE,
    "advantage_fn": ADVANTAGE_FN,
    "policy_loss_fn": POLICY_LOSS_FN,
    "kl_fn": KL_FN,
    "entropy_loss_fn": ENTROPY_LOSS_FN,
    "sample_strategy": SAMPLE_STRATEGY,
}
# The class, with a place for what it declares, of every kind.
LOSS = '''
@POLICY_LOSS_FN.register_module("mine")
class Mine(Base):
    """A loss."""
    {}

    def __init__(self, backend="verl", beta=0.1):
        super().__init__(backend)

    def __call__(self, logprob, action_mask, advantages, {}**kwargs):
        return logprob.sum(), {{}}
'''
TYPE = '''
@ALGORITHM_TYPE.register_module("mine")
class Mine(AlgorithmType):
    """A type."""
    {}
'''


@pytest.fixture(autouse=True)
def _no_plugins_after_each_test() -> Iterator[None]:
    yield
    forget_plugins()


ELSEWHERE = '''
class Distant(GroupAdvantage):
    """In a package that no plugin folder has."""

    def __init__(self, factor=1.0):
        self.factor = factor

    @classmethod
    def default_args(cls):
        return {"factor": 3.0}

    def calculate_group_advantage(self, group_id, exps):
        return exps, {}
'''
OF_ELSEWHERE = '''
@ADVANTAGE_FN.register_module("mine")
class Mine(Distant):
    """Says nothing."""
'''


def _folder(folder: Path, text: str) -> Path:
    plugins = folder / "plugins"
    plugins.mkdir(exist_ok=True)
    (plugins / "mine.py").write_text(text, encoding="utf-8")
    return plugins


def _examined(folder: Path, text: str, algorithm: dict[str, Any], **sections: Any) -> tuple[Config, list[Finding]]:
    """Return the configuration with a plugin of this text, and all problems but notes."""
    tree = yaml.safe_load(MINIMAL) | {"algorithm": algorithm} | sections
    (folder / "run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    catalogue, of_plugins = catalogue_of([_folder(folder, text)])
    plan, problems = examine(folder / "run.yaml", (), catalogue=catalogue, cwd=folder, schema_only=True)
    return plan.stages[0].config, [*of_plugins, *problems]


def _method(name: str, result: str) -> str:
    return f"\n    @classmethod\n    def {name}(cls):\n        return {result}\n"


def test_the_source_of_a_plugin_says_what_its_classes_say(tmp_path: Path) -> None:
    text = SHAPES
    folder = _folder(tmp_path, text)
    catalogue, problems = catalogue_of([folder])
    assert not problems
    load_plugins(folder)
    read = {kind: dict(table) for kind, table in catalogue.plugin_entries.items()}
    assert {kind: sorted(table) for kind, table in read.items()} == {
        kind: sorted(catalogue.plugins[kind]) for kind in REGISTRIES
    }
    for kind, registry in REGISTRIES.items():
        for name, entry in read[kind].items():
            assert entry == registry.contents[name], (kind, name)


def test_what_the_source_says_is_what_is_meant(tmp_path: Path) -> None:
    text = SHAPES
    read = catalogue_of([_folder(tmp_path, text)])[0].plugin_entries
    loss = read["policy_loss_fn"]
    assert dict(loss["by_signature"].args) == {"clip": 0.1, "beta": 0.5, "bound": float("-inf")}
    assert loss["by_signature"].needs == {"advantages", "ref_logprob"}
    assert loss["by_signature"].takes == {"teacher_logprobs"} and loss["by_signature"].convention == "trinity"
    assert loss["by_signature"].nullable == {"clip"} and loss["by_method"].needed_if == {"beta": ""}
    assert loss["by_signature"].doc == "Says it with its parameters."
    assert dict(loss["by_method"].args) == {"beta": 0.25, "kind": "b", "loss_agg_mode": "token-mean"}
    assert (loss["by_method"].convention, loss["by_method"].formula) == ("verl", "-A logprob 0.5")
    assert loss["by_inheritance"].is_open and loss["by_inheritance"].args["beta"] == 0.25
    assert loss["needs_an_argument"] == loss["needs_an_argument_too"]
    assert loss["needs_an_argument"].required == {"needed"}
    advantage = read["advantage_fn"]
    assert (advantage["in_trainer"].scope, advantage["in_trainer"].compares) == ("trainer", True)
    assert advantage["in_trainer"].reads == {"token_level_rewards", "uid", "values"}
    assert (advantage["in_pipeline"].scope, advantage["in_pipeline"].compares) == ("pipeline", True)
    assert dict(advantage["in_pipeline"].args) == {"epsilon": 1e-3, "rest": {"a": 1}, "more": [1, 2]}
    assert advantage["elsewhere"].scope == "pipeline"
    assert read["kl_fn"]["own_kl"].args["kl_coef"] == 0.5 and "old_logprob" in read["kl_fn"]["own_kl"].needs
    assert dict(read["entropy_loss_fn"]["own_entropy"].args) == {"entropy_coef": 0.01, "target": 1.0}
    assert dict(read["sample_strategy"]["own_strategy"].args) == {"window": 4}
    types = read["algorithm_type"]
    assert types["published_type"].args["repeat_times"] == 3 and types["published_type"].has_check
    assert not types["published_type"].can_balance_batch
    assert types["type_over_a_plugin"].args["repeat_times"] == 5
    assert types["type_over_a_plugin"].args["advantage_fn"] == "in_trainer"
    over = types["type_over_another"]
    assert (over.args["policy_loss_fn"], over.args["kl_loss_fn"]) == ("by_signature", "none")
    assert "policy_loss_fn_args" not in over.args, "they are those of another loss"
    assert types["type_of_pairs"].args["mode"] == "train" and types["type_of_pairs"].args["advantage_fn"] is None


@pytest.mark.difference("Algorithm types of plugins")
def test_the_defaults_of_a_type_and_of_its_functions_are_those_of_the_run(tmp_path: Path) -> None:
    text = SHAPES
    config, problems = _examined(tmp_path, text, {"algorithm_type": "published_type"})
    assert not [p for p in problems if p.is_error], problems
    algorithm = config.algorithm
    assert (algorithm.repeat_times, algorithm.advantage_fn, algorithm.policy_loss_fn) == (3, "in_trainer", "by_method")
    assert algorithm.advantage_fn_args == {"gamma": 0.9}
    assert algorithm.policy_loss_fn_args == {"beta": 0.25, "kind": "b", "loss_agg_mode": "token-mean"}
    assert (algorithm.kl_loss_fn_args or {})["kl_coef"] == 0.5
    assert algorithm.entropy_loss_fn_args == {"entropy_coef": 0.01, "target": 1.0}
    assert algorithm.sample_strategy_args == {"window": 4}
    assert config.trainer.trainer_config.critic.enable is True, "its advantage reads values"
    assert config.trainer.balance_batch is False and config.trainer.trainer_config.trainer.balance_batch is False


@pytest.mark.parametrize(
    ("text", "algorithm", "code", "key", "words"),
    [
        (LOSS.format(_method("default_args", "make()"), ""), {}, "E3906", "--plugin-dir",
         "default_args of Mine is computed by `make()`"),
        (LOSS.format("formula = open('f').read()", ""), {}, "E3906", "--plugin-dir", "formula of Mine is computed by"),
        (LOSS.format("formula = '-{beto} A logprob'", ""), {}, "E3907", "--plugin-dir",
         "`formula` of Mine names the argument `beto`, which it does not have"),
        (LOSS.replace("(Base)", "(Unknown)").format("", ""), {}, "W3906", "--plugin-dir", "the base of Mine (Unknown)"),
        (LOSS.format("", ""), {"policy_loss_fn": "mine", "policy_loss_fn_args": {"beto": 1}}, "E1703",
         "algorithm.policy_loss_fn_args.beto", "`mine` has no argument `beto`; known: beta"),
        (LOSS.format("ranges = {'beta': '[0, 1]'}", ""),
         {"policy_loss_fn": "mine", "policy_loss_fn_args": {"beta": 2.0}}, "E1302",
         "algorithm.policy_loss_fn_args.beta", "must be a number in [0, 1], got 2.0"),
        (LOSS.replace('backend="verl", beta=0.1', "backend, beta").format("", ""), {"policy_loss_fn": "mine"}, "E1706",
         "algorithm.policy_loss_fn_args", "`algorithm.policy_loss_fn_args.beta` of mine must be given"),
        (LOSS.format("", "").replace(", **kwargs", ""),
         {"policy_loss_fn": "mine", "rollout_correction": {"rollout_is": "token"}}, "E1852",
         "algorithm.rollout_correction.rollout_is", "which takes no weights"),
        (TYPE.format(_method("default_config", "{'advantage': 'grpo'}")), {"algorithm_type": "mine"}, "E3907",
         "--plugin-dir", "`default_config` of Mine names `advantage`"),
        (TYPE.format(_method("default_config", "dict(zip('a', 'b'))")), {"algorithm_type": "mine"}, "E3906",
         "--plugin-dir", "default_config of Mine is computed by"),
        (TYPE.format("schema = 'pairs'"), {"algorithm_type": "mine"}, "E3907", "--plugin-dir",
         "`schema` of Mine must be one of experience, sft, dpo, cpt, got 'pairs'"),
        (TYPE.format("use_critic = True"), {"algorithm_type": "mine"}, "E3908", "algorithm.algorithm_type",
         "algorithm_type mine declares `use_critic = True`, but"),
        (TYPE.format("use_reference = False"), {"algorithm_type": "mine"}, "E3908", "algorithm.algorithm_type",
         "declares `use_reference = False`, but policy_loss_fn ppo or kl_loss_fn k2 reads `ref_logprob`"),
        (TYPE.format("use_reference = True\n    defaults = {'kl_loss_fn': 'none'}"), {"algorithm_type": "mine"},
         "W3909", "algorithm.algorithm_type", "`use_reference = True` of algorithm_type mine has no effect"),
        (TYPE.format("compute_advantage_in_trainer = True"), {"algorithm_type": "mine"}, "E3908",
         "algorithm.algorithm_type", "declares `compute_advantage_in_trainer = True`, but"),
        (TYPE.format("use_rollout = False"), {"algorithm_type": "mine"}, "E3908", "algorithm.algorithm_type",
         "declares `use_rollout = False`, but its schema is experience"),
        (TYPE.format("needs_operators = True"), {"algorithm_type": "mine"}, "W1832",
         "data_processor.experience_pipeline.operators", "mine fine-tunes on the rollouts that operators keep"),
        (TYPE.format("schema = 'sft'"), {"algorithm_type": "mine"}, "E1807", "mode", "mine, which trains on a dataset"),
        (TYPE.format("defaults = {'policy_loss_fn': 'opmd', 'policy_loss_fn_args': {'clip_range': 1.0}}"),
         {"algorithm_type": "mine"}, "E1703", "algorithm.policy_loss_fn", "give `opmd` an argument `clip_range`"),
        (TYPE.format("defaults = {'advantage_fn': 'grop'}"), {"algorithm_type": "mine"}, "E1701",
         "algorithm.advantage_fn", "unknown advantage_fn `grop`"),
    ],
)  # fmt: skip
def test_what_cannot_hold_is_refused_by_name(
    tmp_path: Path, text: str, algorithm: dict[str, Any], code: str, key: str, words: str
) -> None:
    problems = _examined(tmp_path, HEAD + text, algorithm)[1]
    found = [p for p in problems if p.code == code and p.key == key]
    assert found and words in found[0].message, [(p.code, p.key, p.message) for p in problems]


DERIVED = """
from trinity.algorithm.policy_loss_fn.{} import {} as Base

@POLICY_LOSS_FN.register_module("mine")
class Mine(Base):
    pass
"""


@pytest.mark.parametrize(
    ("module", "base", "algorithm", "code", "words"),
    [
        ("dpo", "DPOPolicyLossFn", {}, "E1833", "policy_loss_fn: mine` does not fit algorithm_type grpo"),
        ("bypass_mode", "VerlBypassModePolicyLossFn", {"bypass_old_logprobs": False}, "E1851",
         "the policy loss mine takes the rollout's log-probabilities for the old ones"),
        ("mix", "MIXPolicyLossFn", {"sample_strategy": "mix", "policy_loss_fn_args": {"train_batch_size_expert": 7}},
         "E1841", "train_batch_size_expert` is 7, but it follows from"),
    ],
)  # fmt: skip
def test_a_loss_over_a_built_in_is_treated_as_that(
    tmp_path: Path, module: str, base: str, algorithm: dict[str, Any], code: str, words: str
) -> None:
    text = HEAD + DERIVED.format(module, base)
    problems = _examined(tmp_path, text, {"policy_loss_fn": "mine"} | algorithm)[1]
    (problem,) = [p for p in problems if p.code == code]
    assert words in problem.message


def test_rows_that_must_stay_in_order_are_not_balanced_whatever_is_written(tmp_path: Path) -> None:
    text = HEAD + TYPE.format("can_balance_batch = False")
    problems = _examined(tmp_path, text, {"algorithm_type": "mine"}, trainer={"balance_batch": True})[1]
    (problem,) = [p for p in problems if p.is_error]
    assert (problem.code, problem.key) == ("E1888", "trainer.balance_batch")
    assert "algorithm_type mine declares `can_balance_batch = False`" in problem.message


def test_a_loss_that_names_the_reference_makes_the_run_load_it(tmp_path: Path) -> None:
    body = "use_reference = True\n    defaults = {'policy_loss_fn': 'mine', 'kl_loss_fn': 'none'}"
    text = HEAD + LOSS.format("", "ref_logprob, ") + TYPE.replace("Mine", "Type").format(body)
    problems = _examined(tmp_path, text, {"algorithm_type": "mine"})[1]
    assert not [p for p in problems if p.is_error or p.code == "W3909"]


def test_the_formulas_of_a_plugin_are_in_the_effective_loss(tmp_path: Path) -> None:
    formula = "formula = '-A logprob / {beta}'"
    body = "use_reference = True\n    defaults = {'policy_loss_fn': 'mine', 'kl_loss_fn': 'none'}"
    text = HEAD + LOSS.format(formula, "ref_logprob, ") + TYPE.replace("Mine", "Type").format(body)
    _examined(tmp_path, text, {"algorithm_type": "mine"})
    plan = check(tmp_path / "run.yaml", plugin_dirs=(tmp_path / "plugins",), schema_only=True)[0]
    found = effective_loss(plan.stages[0])
    assert any("-A logprob / 0.1" in term[0] for term in found.terms), found.terms
    assert "reference: yes, the policy loss mine reads it" in found.models


def test_an_advantage_of_an_unknown_base_is_left_to_the_run_which_reads_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text(HEAD + ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    text = f"from elsewhere import Distant\n{HEAD}{OF_ELSEWHERE}"
    config, problems = _examined(tmp_path, text, {"algorithm_type": "grpo", "advantage_fn": "mine"})
    assert [p.code for p in problems if p.is_error or p.code == "W3906"] == ["W3906"]
    load_plugins(tmp_path / "plugins")
    assert build_advantage_fn(config).factor == 3.0
    problem = _examined(tmp_path, text + TYPE.replace("(AlgorithmType)", "(Distant)").format(""), {})[1][1]
    assert (problem.code, problem.is_error) == ("E3906", True) and "the base of Mine (Distant)" in problem.message


@pytest.mark.parametrize(
    ("text", "owner"),
    [(LOSS.replace('"mine"', '"ppo"'), "a built-in"), (LOSS + LOSS.replace("Mine", "Other"), "mine.py:Mine")],
)
def test_a_name_that_another_class_has_is_refused_unless_it_is_forced(tmp_path: Path, text: str, owner: str) -> None:
    text = HEAD + text.format("", "", "", "")
    problems = [p for p in _examined(tmp_path, text, {})[1] if p.is_error]
    assert [p.code for p in problems] == ["E3903"] and problems[0].message.endswith(f"already registered by {owner}")
    with pytest.raises(ConfigError, match="is already registered by") as caught:
        load_plugins(tmp_path / "plugins")
    assert caught.value.code == "E3903"
    forced = text.replace('register_module("mine")\nclass Other', 'register_module("mine", force=True)\nclass Other')
    forced = forced.replace('register_module("ppo")', 'register_module("ppo", force=True)')
    assert not [p for p in _examined(tmp_path, forced, {})[1] if p.is_error]


def test_a_plugin_keeps_a_name_that_it_took_when_the_built_in_is_imported_later(tmp_path: Path) -> None:
    text = LOSS.replace('"mine"', '"sft", force=True').format("", "")
    folder = _folder(tmp_path, "from trinity.algorithm import POLICY_LOSS_FN, PolicyLossFn as Base\n" + text)
    code = (
        "import sys; from trinity.utils.plugin_loader import load_plugins; load_plugins(sys.argv[1]);"
        "import trinity.algorithm.policy_loss_fn.sft; from trinity.algorithm import POLICY_LOSS_FN;"
        "print(POLICY_LOSS_FN.get('sft').__module__, dict(POLICY_LOSS_FN.contents['sft'].args))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "trinity.plugins.mine {'beta': 0.1}", done.stderr


CHECKS = """
    @classmethod
    def check_config(cls, config):
        {}
"""


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("assert config.buffer.batch_size > 10, 'too small'", "E3911",
         "check_config of algorithm_type mine (trinity.plugins.mine.Mine) refuses the configuration: AssertionError: "
         "too small"),
        ("config.algorithm.policy_loss_fn_args['clip_range'] = 1.0", "E3912",
         "check_config of algorithm_type mine (trinity.plugins.mine.Mine) changed algorithm"),
    ],
)  # fmt: skip
def test_the_check_of_a_type_is_called_when_the_run_starts(tmp_path: Path, body: str, code: str, words: str) -> None:
    config, problems = _examined(tmp_path, HEAD + TYPE.format(CHECKS.format(body)), {"algorithm_type": "mine"})
    assert not [p for p in problems if p.is_error]
    load_plugins(tmp_path / "plugins")
    with pytest.raises(ConfigError) as caught:
        check_type_of(config)
    assert caught.value.code == code and words in str(caught.value)


def test_validate_says_that_a_check_waits_for_the_run(tmp_path: Path) -> None:
    _examined(tmp_path, HEAD + TYPE.format(CHECKS.format("pass")), {"algorithm_type": "mine"})
    problems = check(tmp_path / "run.yaml", plugin_dirs=(tmp_path / "plugins",), schema_only=True)[1]
    (problem,) = [p for p in problems if p.code == "W3910"]
    assert problem.message.startswith("`check_config` of algorithm_type mine is code of a plugin")
    assert problem.file == str(tmp_path / "run.yaml") and "algorithm_type" in (problem.source_line or "")
    of_verl = check(SMALL, ("algorithm.algorithm_type=mine",), plugin_dirs=(tmp_path / "plugins",), schema_only=True)[1]
    assert [(p.key, p.file) for p in of_verl if p.code == "W3910"] == [("algorithm.algorithm_type", "--set #1")]


def test_a_run_refuses_what_validate_refuses(tmp_path: Path) -> None:
    _examined(tmp_path, HEAD + TYPE.format("use_critic = True"), {"algorithm_type": "mine"})
    with pytest.raises(ConfigError, match="declares `use_critic = True`"):
        plan_run(tmp_path / "run.yaml", RunOptions(plugin_dirs=[tmp_path / "plugins"]))


def test_built_in_types_hold_what_they_claim(tmp_path: Path) -> None:
    for name in BUILT_IN.names("algorithm_type"):
        tree = yaml.safe_load(MINIMAL) | {"algorithm": {"algorithm_type": name}}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
        problems = examine(tmp_path / "run.yaml", (), catalogue=BUILT_IN, cwd=tmp_path, schema_only=True)[1]
        assert not {"E3908", "W3909", "E1888"} & {p.code for p in problems}, name
