"""KL terms of one's own: in the loss, in the reward, adaptive, and derived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_run import run_plugin, training_lines

pytestmark = pytest.mark.slow

PLUGIN = """
from trinity.algorithm.kl_fn import KL_FN as DIVERGENCES
from trinity.algorithm.kl_fn.kl_fn import KLFn
from trinity.algorithm.kl_fn.estimators import K2KLFn


@DIVERGENCES.register_module("square")
class Square(KLFn):
    def calculate_kl(self, logprob, ref_logprob, old_logprob=None):
        return (logprob - ref_logprob) ** 2

    @classmethod
    def default_args(cls):
        return {"adaptive": False, "kl_coef": 0.01}


@DIVERGENCES.register_module(module_name="scaled")
class Scaled(K2KLFn):
    def __init__(self, adaptive=False, kl_coef=0.002, target_kl=None, horizon=None, factor=4.0):
        super().__init__(adaptive, kl_coef, target_kl=target_kl, horizon=horizon)
        self.factor = factor

    def calculate_kl(self, logprob, ref_logprob, old_logprob=None):
        return super().calculate_kl(logprob, ref_logprob, old_logprob) * self.factor
"""


def _lines(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    return training_lines(run_plugin(folder, PLUGIN, **changes))


def test_a_term_of_the_loss_has_the_coefficient_that_it_declares(tmp_path: Path) -> None:
    first, second = _lines(tmp_path, algorithm__kl_loss_fn="square")
    assert (first["actor/kl_coef"], second["actor/kl_coef"]) == (0.01, 0.01)
    assert first["actor/kl_loss"] == 0 < second["actor/kl_loss"], "the reference is what the run began with"


def test_a_derived_term_multiplies_its_base(tmp_path: Path) -> None:
    base = _lines(tmp_path / "k2", algorithm__kl_loss_fn="k2", algorithm__kl_loss_fn_args={"kl_coef": 1e-9})[1]
    args = {"kl_coef": 1e-9, "factor": 3.0}
    own = _lines(tmp_path / "own", algorithm__kl_loss_fn="scaled", algorithm__kl_loss_fn_args=args)[1]
    assert own["actor/kl_loss"] == pytest.approx(3 * base["actor/kl_loss"], rel=1e-3) and base["actor/kl_loss"] > 0


def test_a_term_of_the_reward_adapts(tmp_path: Path) -> None:
    penalty = {"adaptive": True, "kl_coef": 0.5, "target_kl": 1.0, "horizon": 100.0}
    algorithm = {"algorithm_type": "reinforceplusplus", "kl_penalty_fn": "square", "kl_penalty_fn_args": penalty}
    first, second = _lines(tmp_path, algorithm={**algorithm, "repeat_times": 2, "optimizer": {"lr": 1e-3}})
    coefficient = [line["actor/reward_kl_penalty_coeff"] for line in (first, second)]
    assert abs(first["actor/reward_kl_penalty"]) < 1e-4 < second["actor/reward_kl_penalty"]
    assert coefficient[0] == 0.5 and coefficient[1] == pytest.approx(0.5 * (1 - 0.2 * 4 / 100))
