"""Advantages of one's own: of tensors in the trainer, of groups in the explorer, and derived ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.contract.plugin_run import run_plugin, training_lines
from trinity.algorithm import ADVANTAGE_FN, AdvantageFn
from trinity.algorithm.advantage_fn import GroupAdvantage
from trinity.common.experience import EID, Experience

pytestmark = pytest.mark.slow

PLUGIN = """
from trinity.algorithm.advantage_fn import ADVANTAGE_FN, AdvantageFn, GroupAdvantage
from trinity.algorithm.advantage_fn.grpo import GRPOGroupedAdvantage
from trinity.common.experience import group_by


@ADVANTAGE_FN.register_module("of_tokens")
class OfTokens(AdvantageFn):
    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, token_level_rewards, response_mask, **kwargs):
        advantages = token_level_rewards.sum(-1, keepdim=True) * response_mask * self.factor
        return advantages, advantages + 1.0, {"my_factor": self.factor}

    @classmethod
    def default_args(cls):
        return {"factor": 5.0}


@ADVANTAGE_FN.register_module(module_name="of_groups")
class OfGroups(GroupAdvantage):
    def __init__(self, shift=0.0):
        self.shift = shift

    def group_experiences(self, exps):
        return group_by(exps, id_type="task")

    def calculate_group_advantage(self, group_id, exps):
        for exp in exps:
            exp.advantages = (exp.reward - self.shift) * exp.action_mask
            exp.returns = exp.advantages.clone()
        return exps, {"shift": self.shift, "named": float(bool(group_id))}

    @classmethod
    def default_args(cls):
        return {"shift": 0.25}


class Doubled(GRPOGroupedAdvantage):
    def calculate_group_advantage(self, group_id, exps):
        exps, metrics = super().calculate_group_advantage(group_id, exps)
        for exp in exps:
            exp.advantages = exp.advantages * 2
            exp.returns = exp.returns * 2
        return exps, metrics


ADVANTAGE_FN.register_module(module_name="doubled", module_cls=Doubled)
"""
KEY = "algorithm__advantage_fn"
ARGS = "algorithm__advantage_fn_args"


def test_an_advantage_of_tensors_has_its_defaults_and_sets_returns(tmp_path: Path) -> None:
    run = run_plugin(tmp_path, PLUGIN, **{KEY: "of_tokens"})
    for line in training_lines(run):
        assert line["critic/my_factor"] == 5.0
        assert line["critic/returns/mean"] == pytest.approx(line["critic/advantages/mean"] + 1)
        assert line["critic/advantages/max"] == pytest.approx(line["critic/score/max"] * 5)


@pytest.mark.difference("Advantage plugins")
@pytest.mark.parametrize(("written", "shift"), [({}, 0.25), ({"shift": 0.5}, 0.5)], ids=["default", "written"])
def test_an_advantage_of_groups_is_computed_by_the_explorer(
    tmp_path: Path, written: dict[str, float], shift: float
) -> None:
    run = run_plugin(tmp_path, PLUGIN, **{KEY: "of_groups", ARGS: written})
    first = run.lines("explorer")[0]
    assert first["experience_pipeline/group_advantages/shift/max"] == shift
    assert first["experience_pipeline/group_advantages/named/min"] == 1
    for line in training_lines(run):
        assert line["critic/returns/mean"] == line["critic/advantages/mean"]
        assert line["critic/advantages/max"] == pytest.approx(line["critic/score/max"] - shift)


def test_an_advantage_may_build_on_a_shipped_one(tmp_path: Path) -> None:
    shipped = training_lines(run_plugin(tmp_path / "grpo", PLUGIN, **{KEY: "grpo"}))[0]
    doubled = training_lines(run_plugin(tmp_path / "doubled", PLUGIN, **{KEY: "doubled"}))[0]
    assert doubled["critic/score/mean"] == shipped["critic/score/mean"]
    assert doubled["critic/advantages/max"] == pytest.approx(2 * shipped["critic/advantages/max"]) != 0


class Shifted(GroupAdvantage):
    """A group advantage as published: every abstract function is there."""

    def __init__(self, shift: float = 0.5) -> None:
        self.shift = shift

    def group_experiences(self, exps):
        return {exp.eid.tid: [other for other in exps if other.eid.tid == exp.eid.tid] for exp in exps}

    def calculate_group_advantage(self, group_id, exps):
        for exp in exps:
            exp.advantages = (exp.reward - self.shift) * exp.action_mask
            exp.returns = exp.advantages.clone()
        return exps, {"seen": len(exps)}

    @classmethod
    def default_args(cls):
        return {"shift": 0.5}


def test_a_group_advantage_is_called_with_experiences() -> None:
    exps, metrics = Shifted()(_experiences(1.0, 0.0), some_argument=1)
    assert [exp.returns.tolist() for exp in exps] == [[0.5, 0.5], [-0.5, -0.5]]
    assert metrics["group_advantages/seen/mean"] == 2 and not Shifted.compute_in_trainer()
    assert issubclass(Shifted, AdvantageFn)


@pytest.mark.parametrize("name", ["grpo", "opmd", "reinforce", "rec", "asymre"])
def test_shipped_group_advantages_set_returns(name: str) -> None:
    exps, _ = ADVANTAGE_FN.get(name)()(_experiences(1.0, 0.0))
    for exp in exps:
        assert exp.advantages.abs().sum() > 0 or exp.reward == 0
        assert exp.returns.equal(exp.advantages) and exp.returns is not exp.advantages


def _experiences(*rewards: float) -> list[Experience]:
    return [
        Experience(
            eid=EID(batch=0, task=0, run=number),
            tokens=torch.tensor([1, 2, 3]),
            prompt_length=1,
            logprobs=torch.zeros(2),
            reward=reward,
        )
        for number, reward in enumerate(rewards)
    ]
