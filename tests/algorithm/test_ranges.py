"""`validate` refuses the arguments that a function of the algorithm would refuse when the run starts, and no others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import checked_calls
from tests.common.config.conftest import MINIMAL
from trinity.algorithm import ADVANTAGE_FN, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN
from trinity.catalogue import BUILT_IN
from trinity.common.config import examine
from trinity.common.config.mixture import DERIVED_ARGUMENTS
from trinity.common.config.rules.registered import range_faults
from trinity.utils.registry import Registry

NUMBERS = (-1.0, -0.1, 0.0, 0.3, 0.5, 0.9, 1.0, 1.5, 2.0, math.inf, None)
WORDS = ("zzz", "none", "std", "value", "gradient", "balance", "batch", "mean", "k2", "gspo-one-side", "reinforce")
FUNCTIONS = [
    (registry, name)
    for registry in (POLICY_LOSS_FN, KL_FN, ENTROPY_LOSS_FN, ADVANTAGE_FN)
    for name, entry in registry.contents.items()
    if entry.path.startswith("trinity.")
]
# Checked by other rules: modes, sizes, weights of a correction, and lists of names.
ELSEWHERE = (*DERIVED_ARGUMENTS, "rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold",
             "gdpo_reward_keys", "gdpo_reward_weights")  # fmt: skip
TOGETHER = (("clip_range", "clip_range_low", "clip_range_high"), ("clip_ratio", "clip_ratio_low", "clip_ratio_high"),
            ("adaptive", "target_kl", "horizon"))  # fmt: skip


def _tried(known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield sets of arguments: one changed, and those changed together that mean something together."""
    for name, default in known.items():
        if name in ELSEWHERE or name.endswith("agg_mode") or isinstance(default, bool):
            continue
        numbers = (-1, 0, 1, 2, None) if isinstance(default, int) or name == "chunk_size" else NUMBERS
        for value in WORDS if isinstance(default, str) or name == "drop" else numbers:
            yield {name: value}
    for names in TOGETHER:
        if all(name in known for name in names):
            choices = [(True,) if name == "adaptive" else (None, -0.1, 0.0, 0.2) for name in names]
            yield from (dict(zip(names, values, strict=True)) for values in itertools.product(*choices))


def _refuses(registry: Registry, name: str, arguments: dict[str, Any]) -> bool:
    checked_calls.begin_test()  # a constructor refuses another type by its annotations
    try:
        registry.get(name)(**arguments)
    except (TypeError, ValueError):
        return True
    return False


@pytest.mark.parametrize(("registry", "name"), FUNCTIONS, ids=[f"{r.name}-{name}" for r, name in FUNCTIONS])
def test_the_ranges_are_those_of_the_constructors(registry: Registry, name: str) -> None:
    known = dict(registry.contents[name].args)
    needed = {"dro_beta": 1.0} if "dro_beta" in known else {}
    for changed in (*_tried(known), {}):
        arguments = {**known, **(needed if changed else {}), **changed}
        found = list(range_faults(registry.contents[name], known, arguments))
        assert bool(found) == _refuses(registry, name, arguments), (changed, found)
        assert {each[0] for each in found} <= {*changed, "dro_beta"}


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        (
            ("policy_loss_fn_args.clip_range=-0.1",),
            "policy_loss_fn_args.clip_range",
            "of ppo must be a number >= 0",
        ),
        (("policy_loss_fn_args.clip_ratio_c=1",), "policy_loss_fn_args.clip_ratio_c", "must be a number > 1, got 1"),
        (("kl_loss_fn_args.kl_coef=-1",), "kl_loss_fn_args.kl_coef", "must be a finite number >= 0"),
        (("policy_loss_fn=sft_phi", "policy_loss_fn_args.cutoff_prob=2"), "policy_loss_fn_args.cutoff_prob", "(0, 1]"),
        (("advantage_fn=opmd", "advantage_fn_args.opmd_baseline=median"), "advantage_fn_args.opmd_baseline", "one of "),
        (("policy_loss_fn=verl_dro",), "policy_loss_fn_args.dro_beta", "must be a number > 0, got None"),
        (("kl_loss_fn_args.adaptive=true", "kl_loss_fn_args.horizon=9"), "kl_loss_fn_args.target_kl", "adaptive: true"),
    ],
)
def test_an_argument_out_of_its_range_is_told_before_anything_starts(
    tmp_path: Path, settings: tuple[str, ...], key: str, words: str
) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    overrides = [f"algorithm.{setting}" for setting in settings]
    problems = examine(tmp_path / "run.yaml", overrides, catalogue=BUILT_IN, cwd=tmp_path)[1]
    (found,) = [problem for problem in problems if problem.is_error]
    assert (found.code, found.key) == ("E1302", f"algorithm.{key}") and words in found.message and found.suggestion
