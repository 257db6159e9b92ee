"""Names of the tables of contents in a configuration: all of them may be written, and a typing error is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN, SAMPLE_STRATEGY
from trinity.catalogue import BUILT_IN
from trinity.common.config import Finding, examine

KEYS = {
    "algorithm_type": ALGORITHM_TYPE,
    "advantage_fn": ADVANTAGE_FN,
    "policy_loss_fn": POLICY_LOSS_FN,
    "kl_loss_fn": KL_FN,
    "kl_penalty_fn": KL_FN,
    "entropy_loss_fn": ENTROPY_LOSS_FN,
    "sample_strategy": SAMPLE_STRATEGY,
}


def _problems(folder: Path, key: str, name: str) -> list[Finding]:
    path = folder / "run.yaml"
    path.write_text(f"{MINIMAL}algorithm:\n  {key}: '{name}'\n", encoding="utf-8")
    return [p for p in examine(path, (), catalogue=BUILT_IN, cwd=folder, schema_only=True)[1] if p.code != "W1301"]


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, registry in KEYS.items() for name in registry])
def test_every_name_of_the_tables_is_known_and_served(tmp_path: Path, key: str, name: str) -> None:
    codes = {problem.code for problem in _problems(tmp_path, key, name)}
    assert not codes & {"E1301", "E1701", "E1900"}


@pytest.mark.parametrize(
    ("key", "name", "meant"),
    [("algorithm_type", "grop", "grpo"), ("algorithm_type", "gigppo", "gigpo"), ("advantage_fn", "rlo", "rloo"),
     ("kl_loss_fn", "low_vra_kl", "low_var_kl"), ("entropy_loss_fn", "defalt", "default"),
     ("sample_strategy", "stalenes_control", "staleness_control")],
)  # fmt: skip
def test_typing_error_is_answered_with_what_was_meant(tmp_path: Path, key: str, name: str, meant: str) -> None:
    problem = next(p for p in _problems(tmp_path, key, name) if p.key == f"algorithm.{key}")
    assert (problem.suggestion or "").startswith(f"did you mean `{meant}`? a name of your own needs --plugin-dir ")
    assert problem.message.endswith(f"known: {', '.join(sorted(KEYS[key]))}")
