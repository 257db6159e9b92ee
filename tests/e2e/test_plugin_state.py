"""Losses, advantages and operators of plugins that remember something continue where they were after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.trainer.conftest import make_experiences
from trinity.algorithm.policy_loss_fn.gspo import GSPOPolicyLossFn
from trinity.buffer.operators import ExperienceOperator
from trinity.buffer.pipelines.experience_pipeline import ExperiencePipeline
from trinity.common.errors import CheckpointError, WorkflowError
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.trainer.verl.plugin_state import _unknown

pytestmark = pytest.mark.slow

PLUGINS = '''
"""Functions whose next result depends on all before."""

import torch

from trinity.algorithm import ADVANTAGE_FN, POLICY_LOSS_FN, AdvantageFn, GroupAdvantage, PolicyLossFn
from trinity.algorithm.advantage_fn.advantage_fn import set_advantage
from trinity.algorithm.entropy_loss_fn import DefaultEntropyLossFn
from trinity.algorithm import ENTROPY_LOSS_FN
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperatorV1
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("digits_of_the_response")
class DigitsOfTheResponse(RewardFn):
    """The share of digits."""

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        return {"digits": sum(character.isdigit() for character in response) / max(len(response), 1)}


@EXPERIENCE_OPERATORS.register_module("adds_the_number_of_calls")
class AddsTheNumberOfCalls(ExperienceOperatorV1):
    """Adds what it has seen so far to each reward."""

    def __init__(self):
        self.num_seen = 0

    async def process(self, exps):
        for index, exp in enumerate(exps):
            self.num_seen += 1
            exp.reward += 0.1 * self.num_seen * (index % 2)
        return exps, {"seen": self.num_seen}

    def state_dict(self):
        return {"num_seen": self.num_seen}

    def load_state_dict(self, state):
        self.num_seen = state["num_seen"]


@ADVANTAGE_FN.register_module("running_baseline")
class RunningBaseline(GroupAdvantage):
    """Reward minus a running mean over all groups."""

    def __init__(self):
        self.baseline = 0.0

    def calculate_group_advantage(self, group_id, exps):
        for exp in exps:
            set_advantage(exp, exp.reward - self.baseline)
        self.baseline += 0.3 * (sum(exp.reward for exp in exps) / len(exps) - self.baseline)
        return exps, {"baseline": self.baseline}

    def state_dict(self):
        return {"baseline": self.baseline}

    def load_state_dict(self, state):
        self.baseline = state["baseline"]


@ADVANTAGE_FN.register_module("running_baseline_in_trainer")
class RunningBaselineInTrainer(AdvantageFn):
    """The same in the trainer."""

    def __init__(self):
        self.baseline = torch.zeros(())

    def __call__(self, token_level_rewards, response_mask):
        rewards = token_level_rewards.sum(-1, keepdim=True)
        advantages = (rewards - self.baseline) * response_mask
        self.baseline = self.baseline + 0.3 * (rewards.mean() - self.baseline)
        return advantages, advantages, {"running_baseline": float(self.baseline)}

    def state_dict(self):
        return {"baseline": self.baseline}

    def load_state_dict(self, state):
        self.baseline = state["baseline"]


class Growing:
    """A factor that grows with every call."""

    factor = 1.0

    def grow(self):
        self.factor *= 1.1
        return self.factor

    def state_dict(self):
        return {"factor": self.factor}

    def load_state_dict(self, state):
        self.factor = state["factor"]


@POLICY_LOSS_FN.register_module("growing_reinforce")
class GrowingReinforce(Growing, PolicyLossFn):
    """REINFORCE times the factor."""

    def __call__(self, logprob, action_mask, advantages, **kwargs):
        loss = -self.grow() * (advantages * logprob)[action_mask].mean()
        return loss, {"pg_loss": loss.item()}


@ENTROPY_LOSS_FN.register_module("growing_entropy")
class GrowingEntropy(Growing, DefaultEntropyLossFn):
    """The entropy times the factor."""

    def __call__(self, entropy, action_mask, loss_agg_mode="token-mean", **kwargs):
        loss, values = super().__call__(entropy, action_mask, loss_agg_mode)
        return loss * self.grow(), values
'''
GROWING = {
    "algorithm_type": "grpo", "policy_loss_fn": "growing_reinforce", "entropy_loss_fn": "growing_entropy",
    "entropy_loss_fn_args": {"entropy_coef": 0.05}, "kl_loss_fn": "none",
}  # fmt: skip


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins_with_state")
    (folder / "with_state.py").write_text(PLUGINS)
    return folder


def finish(folder: Path, plugins: Path, advantage: str, *steps: int) -> TinyRun:
    """Run in this process up to each number of steps, each time from the last checkpoint."""
    run = TinyRun(folder).change(
        deterministic=True,
        checkpoint_root_dir=str(folder / "out"),
        model__model_path=str(folder / "model"),
        algorithm={"repeat_times": 4, "advantage_fn": advantage, "optimizer": {"lr": 1.0e-3}} | GROWING,
        buffer__total_steps=3,
        buffer__explorer_input__default_reward_fn_type="digits_of_the_response",
        buffer__explorer_input__taskset__path=str(folder / "train.jsonl"),
        data_processor__experience_pipeline__operators=[{"name": "adds_the_number_of_calls"}],
    )
    (folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    for number in steps:
        options = RunOptions(overrides=(f"buffer.total_steps={number}",), plugin_dirs=(plugins,))
        assert run_plan(plan_run(folder / "run.yaml", options), options).error is None
    return run


@pytest.mark.difference("Plugins that remember something")
@pytest.mark.parametrize("advantage", ["running_baseline", "running_baseline_in_trainer"])
def test_functions_that_remember_go_on_where_they_were(tmp_path: Path, plugins: Path, advantage: str) -> None:
    whole = finish(tmp_path / "whole", plugins, advantage, 3)
    parts = finish(tmp_path / "parts", plugins, advantage, 1, 2, 3)
    assert final_weights(parts, 3) == final_weights(whole, 3)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)
    seen = [line["experience_pipeline/adds_the_number_of_calls/seen"] for line in parts.lines("explorer")]
    assert seen == [8, 16, 24]
    extra = torch.load(parts.job / "global_step_3/actor/extra_state_world_size_1_rank_0.pt", weights_only=True)
    states = {role: saved["state"] for role, saved in extra["functions"].items()}
    calls = {role: state["factor"] for role, state in states.items() if "factor" in state}
    assert calls == {role: pytest.approx(1.1**3) for role in ("policy_loss_fn", "entropy_loss_fn")}
    assert ("advantage_fn" in extra["functions"]) == (advantage == "running_baseline_in_trainer")


class WithTensor(ExperienceOperator):
    """Keeps what JSON cannot hold."""

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return exps, {}

    def state_dict(self) -> dict[str, Any]:
        return {"mean": torch.zeros(2)}


def test_a_state_that_cannot_be_saved_is_an_error(make_worker: Any, tmp_path: Path) -> None:
    pipeline = ExperiencePipeline([("with_tensor", WithTensor())])
    with pytest.raises(WorkflowError, match="E5140.*experience operator with_tensor must return a dict of JSON values"):
        pipeline.state_dict()
    made = make_worker()
    made.train_step(make_experiences(1), 1)
    made.loss_fn.policy_loss.state_dict = lambda: {"history": [1.0, {2.0}]}
    with pytest.raises(WorkflowError, match=r"E5141.*PPOPolicyLossFn \(algorithm.policy_loss_fn\).*got set in it"):
        made.save(tmp_path, hf=False)
    assert _unknown({"a": [1, "b", None, torch.ones(1)], 3: {"c": True}}) is None


def test_the_state_of_another_function_is_left_out_with_a_warning(
    make_worker: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, again = make_worker(), make_worker()
    made.loss_fn.policy_loss.state_dict = lambda: {"history": [1.0]}
    made.save(tmp_path, hf=False)
    seen: list[Any] = []
    again.loss_fn.policy_loss.load_state_dict = seen.append
    again.load(tmp_path)
    assert seen == [{"history": [1.0]}] and "does not use" not in caplog.text
    again.loss_fn.policy_loss = GSPOPolicyLossFn()
    again.loss_fn.policy_loss.load_state_dict = seen.append
    again.load(tmp_path)
    assert len(seen) == 1
    assert "state of PPOPolicyLossFn (algorithm.policy_loss_fn), which this run does not use" in caplog.text


def test_a_function_that_cannot_read_its_state_is_named(make_worker: Any, tmp_path: Path) -> None:
    made, again = make_worker(), make_worker()
    made.loss_fn.policy_loss.state_dict = lambda: {"older": 1.0}
    made.save(tmp_path, hf=False)
    again.loss_fn.policy_loss.load_state_dict = lambda state: state["newer"]
    with pytest.raises(CheckpointError, match=r"PPOPolicyLossFn \(algorithm.policy_loss_fn\).*'newer'") as caught:
        again.load(tmp_path)
    assert caught.value.code == "E7023"


def test_the_state_of_an_operator_that_is_gone_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    ExperiencePipeline().load_state_dict({"gone": {"n": 1}})
    assert "the checkpoint holds a state of the experience operator gone" in caplog.text


@pytest.fixture
def make_worker(tmp_path: Path) -> Any:
    from tests.resolved import resolved
    from tests.tiny import tiny_model
    from trinity.trainer.verl.worker import ActorWorker

    def make() -> ActorWorker:
        tiny_model(tmp_path / "model", seed=1)
        algorithm = {"algorithm_type": "grpo", "kl_loss_fn": "none"}
        model = {"model_path": str(tmp_path / "model"), "max_model_len": 64}
        config = resolved({"project": "p", "name": "n", "model": model, "algorithm": algorithm})
        return ActorWorker(config, tokenizer=None, total_steps=2)

    return make
