"""The tables of contents agree with the classes they name, and cost no torch."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from trinity.algorithm import (
    ADVANTAGE_FN,
    ALGORITHM_TYPE,
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
from trinity.common.errors import ConfigError
from trinity.utils.registry import Registry

BASES = {
    "advantage_fn": (ADVANTAGE_FN, AdvantageFn),
    "policy_loss_fn": (POLICY_LOSS_FN, PolicyLossFn),
    "kl_fn": (KL_FN, KLFn),
    "entropy_loss_fn": (ENTROPY_LOSS_FN, EntropyLossFn),
    "sample_strategy": (SAMPLE_STRATEGY, SampleStrategy),
}
COMPONENTS = {
    "advantage_fn": ADVANTAGE_FN,
    "policy_loss_fn": POLICY_LOSS_FN,
    "kl_loss_fn": KL_FN,
    "kl_penalty_fn": KL_FN,
    "entropy_loss_fn": ENTROPY_LOSS_FN,
    "sample_strategy": SAMPLE_STRATEGY,
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


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
def test_a_loss_that_takes_weights_of_the_rollout_says_so(name: str) -> None:
    takes = "rollout_is_weights" in inspect.signature(POLICY_LOSS_FN.get(name).__call__).parameters
    assert ("rollout_is_weights" in POLICY_LOSS_FN.contents[name].takes) == takes


@pytest.mark.parametrize("name", list(ALGORITHM_TYPE))
def test_algorithm_type_names_components_that_exist(name: str) -> None:
    cls, config = ALGORITHM_TYPE.get(name), ALGORITHM_TYPE.get(name).default_config()
    assert issubclass(cls, AlgorithmType) and cls.name() == name and ALGORITHM_TYPE.contents[name].doc
    for key, registry in COMPONENTS.items():
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
