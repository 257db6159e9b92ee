"""The tables of contents agree with the classes they name, and cost no torch."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from tools import contents
from trinity.algorithm import (
    ADVANTAGE_FN,
    ALGORITHM_TYPE,
    BY_ROLE,
    CONTENTS,
    ENTROPY_LOSS_FN,
    KL_FN,
    POLICY_LOSS_FN,
    SAMPLE_STRATEGY,
    AdvantageFn,
    AlgorithmType,
    EntropyLossFn,
    KLFn,
    PolicyLossFn,
    SampleStrategy,
)
from trinity.catalogue import PACKAGES
from trinity.common.errors import ConfigError
from trinity.utils.registry import Registry

BASES = {
    "advantage_fn": (ADVANTAGE_FN, AdvantageFn),
    "policy_loss_fn": (POLICY_LOSS_FN, PolicyLossFn),
    "kl_fn": (KL_FN, KLFn),
    "entropy_loss_fn": (ENTROPY_LOSS_FN, EntropyLossFn),
    "sample_strategy": (SAMPLE_STRATEGY, SampleStrategy),
}
ENTRIES = [(registry, base, name) for registry, base in BASES.values() for name in registry]
GIVEN_BY_THE_TRAINER = {"backend", "source", "batch_size"}


@pytest.mark.parametrize(("registry", "base", "name"), ENTRIES, ids=[f"{r.name}:{n}" for r, _, n in ENTRIES])
def test_entry_lists_the_arguments_of_its_class(registry: Registry, base: type[Any], name: str) -> None:
    cls = registry.get(name)
    assert issubclass(cls, base)
    parameters = inspect.signature(cls).parameters
    signature = {p.name: p.default for p in parameters.values() if p.name not in GIVEN_BY_THE_TRAINER}
    entry = registry.contents[name]
    assert dict(entry.args) == signature == cls.default_args() and entry.doc


@pytest.mark.parametrize("package", contents.PACKAGES)
def test_the_file_of_the_tables_is_what_the_classes_say(package: str) -> None:
    written = contents.file_of(package).read_text(encoding="utf-8")
    assert written == contents.contents(package).to_json(), "run `python -m tools.contents`"


def test_no_two_base_classes_of_plugins_have_one_name() -> None:
    names = [name for package in PACKAGES for name in package.classes]
    assert len(names) == len(set(names)) and "Monitor" not in names


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
def test_what_a_loss_needs_and_takes_are_the_tensors_that_its_call_names(name: str) -> None:
    parameters = inspect.signature(POLICY_LOSS_FN.get(name).__call__).parameters.values()
    named = {p.name: p.default is inspect.Parameter.empty for p in parameters if p.kind is not p.VAR_KEYWORD}
    entry = CONTENTS.names["policy_loss_fn"][name]
    assert named.keys() - {"self", "logprob", "action_mask"} == entry.needs | entry.takes
    assert all(named[tensor] for tensor in entry.needs) and not any(named[tensor] for tensor in entry.takes)


@pytest.mark.parametrize("name", list(ADVANTAGE_FN))
def test_an_advantage_says_where_it_is_called_and_with_what(name: str) -> None:
    function, entry = ADVANTAGE_FN.get(name), CONTENTS.names["advantage_fn"][name]
    in_trainer = function.compute_in_trainer()
    names = set(inspect.signature(function.__call__).parameters) - {"self", "action_mask"} if in_trainer else set()
    assert entry.scope == ("trainer" if in_trainer else "pipeline")
    assert entry.needs | entry.takes == names or (name, entry.needs) == ("gigpo", {"step_reward"})
    assert entry.compares == ("uid" in names if in_trainer else name != "reinforce")


@pytest.mark.parametrize("name", list(ALGORITHM_TYPE))
def test_algorithm_type_names_functions_that_exist(name: str) -> None:
    cls, config = ALGORITHM_TYPE.get(name), ALGORITHM_TYPE.get(name).default_config()
    assert issubclass(cls, AlgorithmType) and cls.name() == name and ALGORITHM_TYPE.contents[name].doc
    for key, registry in BY_ROLE.items():
        chosen = config[key]
        assert chosen is None or chosen in registry
        entry = registry.contents.get(chosen)
        assert set(config.get(f"{key}_args", {})) <= set(entry.args if entry is not None else {})
    advantage = ADVANTAGE_FN.get(config["advantage_fn"])
    assert cls.compute_advantage_in_trainer == (advantage is not None and advantage.compute_in_trainer())
    needs = ADVANTAGE_FN.contents[config["advantage_fn"]].needs if advantage is not None else frozenset()
    assert cls.use_critic == ("values" in needs)
    assert cls.use_reference == (config["kl_loss_fn"] != "none" or cls.schema == "dpo")
    assert (config["mode"] == "train") == (cls.schema in ("sft", "cpt", "dpo"))


def test_tables_need_no_torch() -> None:
    code = "import sys, trinity.algorithm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match="unknown kl_fn 'low_kl'; did you mean 'low_var_kl'. known: abs, abs., corrected_k3"
    ):
        KL_FN.get("low_kl")


def test_classes_of_kl_and_advantages_are_importable_from_their_packages() -> None:
    from trinity.algorithm import advantage_fn, kl_fn

    assert kl_fn.KLFn is KLFn and kl_fn.K2KLFn is KL_FN.get("k2")
    assert advantage_fn.AdvantageFn is AdvantageFn and issubclass(advantage_fn.TokenAdvantage, AdvantageFn)
    for package in (kl_fn, advantage_fn):
        with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
            package.Missing  # noqa: B018
