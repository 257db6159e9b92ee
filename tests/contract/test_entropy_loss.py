"""Entropy terms of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.plugin_run import run_plugin, training_lines

pytestmark = pytest.mark.slow

PLUGIN = """
from trinity.algorithm.entropy_loss_fn import ENTROPY_LOSS_FN, EntropyLossFn
from trinity.algorithm.entropy_loss_fn.entropy_loss_fn import DefaultEntropyLossFn
from trinity.algorithm.utils import masked_mean


@ENTROPY_LOSS_FN.register_module("mine")
class Mine(EntropyLossFn):
    def __init__(self, entropy_coef=0.0):
        self.entropy_coef = entropy_coef

    def __call__(self, entropy, action_mask, **kwargs):
        assert entropy.shape == action_mask.shape
        loss = masked_mean(entropy, action_mask)
        return loss * self.entropy_coef, {"my_entropy_coef": self.entropy_coef, "entropy_loss": loss.item()}

    @classmethod
    def default_args(cls):
        return {"entropy_coef": 0.125}


class Halved(DefaultEntropyLossFn):
    def __call__(self, entropy, action_mask, loss_agg_mode="token-mean", **kwargs):
        loss, metrics = super().__call__(entropy, action_mask, loss_agg_mode=loss_agg_mode, **kwargs)
        return loss / 2, {**metrics, "my_half": loss.item() / 2}


ENTROPY_LOSS_FN.register_module("halved", module_cls=Halved)
"""


def test_a_term_has_the_coefficient_that_it_declares_and_is_subtracted(tmp_path: Path) -> None:
    for line in training_lines(run_plugin(tmp_path, PLUGIN, algorithm__entropy_loss_fn="mine")):
        assert line["actor/my_entropy_coef"] == 0.125 and line["actor/entropy_loss"] > 0
        expected = line["actor/pg_loss"] - 0.125 * line["actor/entropy_loss"]
        assert line["actor/final_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_term_may_build_on_the_shipped_one(tmp_path: Path) -> None:
    args = {"algorithm__entropy_loss_fn": "halved", "algorithm__entropy_loss_fn_args": {"entropy_coef": 0.5}}
    for line in training_lines(run_plugin(tmp_path, PLUGIN, **args)):
        assert line["actor/my_half"] == pytest.approx(0.25 * line["actor/entropy_loss"], rel=1e-4)
        expected = line["actor/pg_loss"] - line["actor/my_half"]
        assert line["actor/final_loss"] == pytest.approx(expected, rel=1e-4)
