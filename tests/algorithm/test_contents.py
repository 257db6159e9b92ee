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
    EntropyLossFn,
    GroupAdvantage,
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


def test_algorithm_types_name_components_that_exist() -> None:
    for name in ALGORITHM_TYPE:
        config = ALGORITHM_TYPE.get(name).default_config()
        assert ALGORITHM_TYPE.get(name).name() == name
        assert config["policy_loss_fn"] in POLICY_LOSS_FN and config["sample_strategy"] in SAMPLE_STRATEGY
        assert config["kl_loss_fn"] in KL_FN and config["kl_penalty_fn"] in KL_FN
        assert config["entropy_loss_fn"] in ENTROPY_LOSS_FN
        assert config["advantage_fn"] is None or issubclass(ADVANTAGE_FN.get(config["advantage_fn"]), GroupAdvantage)


def test_tables_need_no_torch() -> None:
    code = "import sys, trinity.algorithm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match="unknown kl_fn 'low_kl'; did you mean 'low_var_kl'. known: abs, corrected_k3"
    ):
        KL_FN.get("low_kl")
